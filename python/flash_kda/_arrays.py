"""What the array libraries do differently: fresh arrays, workspace, streams. Nothing here imports a library that the
caller's arrays did not bring."""

from __future__ import annotations

import sys
from typing import Any, NoReturn


def library_of(array: Any) -> str:
    """The root module of an array's type: "numpy", "torch", "cupy", "jax" or another."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):  # torch.compile can follow this; subclasses live anywhere
        return "torch"
    root = type(array).__module__.partition(".")[0]
    return "jax" if root == "jaxlib" else root


def empty(like: Any, shape: tuple[int, ...], *, float32: bool = False, zero: bool = False) -> Any:
    """A fresh array of `shape` on the device of `like`, of its type or float32, uninitialised unless `zero`.

    For JAX it is a NumPy array, since JAX's own are immutable; `finish` turns it into one of JAX.
    """
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]
        make = torch.zeros if zero else torch.empty
        return make(shape, dtype=torch.float32 if float32 else like.dtype, device=like.device)
    if library in ("numpy", "jax", "cupy"):
        module = sys.modules["cupy" if library == "cupy" else "numpy"]
        make = module.zeros if zero else module.empty
        return make(shape, dtype="float32" if float32 else like.dtype)
    raise TypeError(
        f"out: cannot be allocated for v of type {type(like).__qualname__}; give out and final_state yourself, or pass "
        "arrays of NumPy, torch, JAX or CuPy"
    )


def finish(like: Any, array: Any) -> Any:
    """An array from `empty`, now filled, as the library of `like` wants it."""
    if library_of(like) == "jax" and library_of(array) == "numpy":
        return sys.modules["jax"].numpy.asarray(array)
    return array


def refuse_requires_grad(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: requires grad, but flash_kda has no backward pass yet; call it under torch.inference_mode() or "
        f"torch.no_grad(), or pass {name}.detach()"
    )


def refuse_tangent(name: str, tensor: Any) -> None:
    """Raises where a torch tensor carries a tangent of forward-mode differentiation."""
    if sys.modules["torch"].autograd.forward_ad.unpack_dual(tensor).tangent is not None:
        raise NotImplementedError(
            f"{name}: has a tangent, but flash_kda has no forward-mode derivative yet; pass its primal "
            "(torch.autograd.forward_ad.unpack_dual)"
        )


def allocate_workspace(like: Any, size: int, stream: int) -> Any:
    """`size` bytes on the GPU of `like`, from its library's allocator, for work on `stream`: both allocators reuse memory
    in the order of the stream that was current at the allocation."""
    library = library_of(like)
    if library == "torch":
        torch = sys.modules["torch"]
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=like.device)):
            return torch.empty(size, dtype=torch.uint8, device=like.device)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.ExternalStream(stream):
            return cupy.empty(size, dtype="uint8")
    raise RuntimeError(
        f"workspace: got None, accepted for q of type {type(like).__qualname__} is an array of at least {size} bytes "
        "on its device"
    )


def current_stream(name: str, array: Any) -> int:
    """The cudaStream_t that the library of `array` works on now. torch answers through its C exchange API instead."""
    library = library_of(array)
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(array.device).cuda_stream)
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    raise RuntimeError(
        f"stream: got None, but the current stream of {name} ({type(array).__module__}.{type(array).__qualname__}) is "
        "not known; accepted is a cudaStream_t as an integer"
    )

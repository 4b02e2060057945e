"""The public functions. Each gathers its tensors in the order of the compiled module, which imports and checks them."""

from __future__ import annotations

import json
import operator
import sys
from typing import Any, Literal

from . import _arrays
from ._extension import native

# An array of NumPy, torch, JAX, CuPy, or of any library whose arrays have __dlpack__.
Array = Any

Gate = Literal["bounded", "softplus", "log"]
BetaForm = Literal["logits", "probabilities", "twice_sigmoid"]
Backend = Literal["cpu", "cuda", "reference"]
CudaPath = Literal["cuda/two_kernel", "cuda/fused"]


def _operators_for(q: Array) -> Any:
    """The module whose `forward` and `decode` serve a call: the compiled one, or the torch custom operators where torch
    must see one: under torch.compile, and for tensors without memory of their own (fake tensors, other subclasses)."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor):
        return native
    if not torch.compiler.is_compiling() and type(q) in (torch.Tensor, torch.nn.Parameter):
        return native
    from . import _torch

    return _torch


def _shape(array: Array) -> tuple[int, ...]:
    shape: tuple[int, ...] = getattr(array, "shape", ())
    return shape


def _final_state_shape(q: Array, v: Array, cu_seqlens: Array | None) -> tuple[int, ...] | None:
    """[N, HV, V, K], or None where the arguments are wrong, which the call itself will say better."""
    q_shape, v_shape = _shape(q), _shape(v)
    if len(q_shape) != 4 or len(v_shape) != 4:
        return None
    sequences = q_shape[0]
    if cu_seqlens is not None:
        lengths = _shape(cu_seqlens)
        if len(lengths) != 1 or lengths[0] < 1:
            return None
        sequences = lengths[0] - 1
    return (sequences, v_shape[2], v_shape[3], q_shape[3])


def fwd(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float | None,
    out: Array,
    A_log: Array | None,
    dt_bias: Array | None,
    lower_bound: float,
    initial_state: Array | None = None,
    final_state: Array | None = None,
    cu_seqlens: Array | None = None,
) -> None:
    """KDA over whole sequences, written into `out` (and `final_state`). The interface of the published FlashKDA
    package.

    The bounded gate, ``gamma = lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``, ``sigmoid(beta)``, and
    L2-normalised q and k. `forward` has the other forms, and the definitions.

    Args:
        q, k: [B, T, H, K], bfloat16, float16 or float32; the last dimension is contiguous, the others may be strided.
        v: [B, T, HV, V], the type of q; HV is a multiple of H.
        g: [B, T, HV, K], the raw gate.
        beta: [B, T, HV], logits.
        scale: Factor of the output; None is 1 / sqrt(K).
        out: [B, T, HV, V], written. Rows behind the end of cu_seqlens are left as they are.
        A_log: [HV] float32, or None for a factor of 1.
        dt_bias: [HV, K] or [HV * K] float32, or None for 0.
        lower_bound: Of the gate, -5 <= lower_bound < 0.
        initial_state: [N, HV, V, K] float32 or bfloat16 (float16 on the CPU), or None for zeros.
        final_state: [N, HV, V, K], written; None: not stored. May be the memory of initial_state.
        cu_seqlens: [N + 1] int64 or int32: N packed sequences, B must be 1. None: N = B sequences of T tokens.

    Raises:
        TypeError: An argument of the wrong kind or type.
        ValueError: A shape, stride, alignment, overlap or range.
        RuntimeError: Tensors on different devices, a device without a backend, a CUDA error.
        NotImplementedError: A tensor requires grad, or has a tangent, and gradients are on.
        MemoryError: Of the CPU backend.
    """
    _operators_for(q).forward(
        (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, final_state)
        + (None, None, None, None, None, None, out),
        scale,
        lower_bound,
        "bounded",
        "logits",
        True,
        False,
        False,
        None,
        0,
        None,
        None,
    )


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: got {value!r}, accepted is an integer")
    if value < least:
        raise ValueError(f"{name}: got {value}, accepted is {least} or more")
    return operator.index(value)


def get_workspace_size(T_total: int, H: int, N: int = 1) -> int:
    """Bytes of GPU workspace that `fwd` uses over N sequences of T_total tokens in all and H heads, K = V = 128, with
    bfloat16 inputs.

    `fwd` allocates it itself, through the framework of its inputs. Without a usable GPU it is 0: the CPU backend needs
    none.

    Args:
        T_total: Tokens of all sequences, 0 or more.
        H: Heads, 1 or more.
        N: Sequences, 0 or more.

    Raises:
        TypeError: An argument that is no integer.
        ValueError: An argument below its least value, or a size that no GPU has.
        RuntimeError: The GPU has no kernel for this.
    """
    tokens, heads, sequences = _count("T_total", T_total, 0), _count("H", H, 1), _count("N", N, 0)
    if not info()["cuda"]["available"]:
        return 0
    torch = sys.modules.get("torch")
    device = torch.cuda.current_device() if torch is not None and torch.cuda.is_initialized() else 0
    return native.forward_workspace_size(tokens, heads, sequences, device)


def forward(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    *,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    scale: float | None = None,
    lower_bound: float = -5.0,
    gate: Gate = "bounded",
    beta_form: BetaForm = "logits",
    l2norm: bool = True,
    initial_state: Array | None = None,
    final_state: Array | None = None,
    output_final_state: bool = True,
    cu_seqlens: Array | None = None,
    read_index: Array | None = None,
    write_index: Array | None = None,
    has_initial_state: Array | None = None,
    checkpoints: Array | None = None,
    checkpoint_state: Array | None = None,
    checkpoint_index: Array | None = None,
    out: Array | None = None,
    batch_invariant: bool = False,
    check_cu_seqlens: bool = False,
    num_threads: int = 0,
    backend: Backend | CudaPath | None = None,
    stream: int | None = None,
    workspace: Array | None = None,
) -> tuple[Array, Array | None]:
    """KDA over whole sequences, with every option; returns the output and the final state.

    Per sequence and value head h, which reads query/key head ``h // (HV // H)``, with S [V, K] from initial_state::

        S   = S * diag(exp(gamma_t))
        u_t = beta_t * (v_t - S k_t)
        S   = S + u_t k_t^T
        o_t = scale * S q_t

    (Kimi Linear, arXiv:2510.26692, section 3), q and k divided by ``sqrt(|x|^2 + 1e-6)`` if `l2norm`. The softplus
    gate is that paper's; the bounded gate and the 1e-6 are those of flash-linear-attention's ``chunk_kda`` and of the
    published FlashKDA.

    Args:
        q, k: [B, T, H, K], bfloat16, float16 or float32; the last dimension is contiguous, the others may be strided.
        v: [B, T, HV, V], the type of q; HV is a multiple of H.
        g: [B, T, HV, K], the raw gate.
        beta: [B, T, HV].
        A_log: [HV] float32, or None for a factor of 1.
        dt_bias: [HV, K] or [HV * K] float32, or None for 0.
        scale: Factor of the output; None is 1 / sqrt(K).
        lower_bound: Of the bounded gate, -5 <= lower_bound < 0.
        gate: How gamma follows from g: "bounded", ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))``; "softplus",
            ``-exp(A_log) * softplus(g + dt_bias)``; "log", g itself (A_log and dt_bias must be None).
        beta_form: "logits", ``sigmoid(beta)``; "probabilities", beta itself; "twice_sigmoid", ``2 * sigmoid(beta)``.
        l2norm: Whether q and k are normalised.
        initial_state: [N, HV, V, K] float32 or bfloat16 (float16 on the CPU), or None for zeros. With read_index: a
            pool [slots, HV, V, K], whose slots may be padded.
        final_state: [N, HV, V, K], written in place and returned; with write_index a pool. May be the memory of
            initial_state. None: a fresh float32 one is returned, unless output_final_state is False.
        output_final_state: Whether a final state is made where none is given.
        cu_seqlens: [N + 1] int64 or int32: N packed sequences, B must be 1. None: N = B sequences of T tokens. Rows of
            a given out behind its end are left as they are, those of a fresh one are 0.
        read_index, write_index: [N] int32, slots of initial_state and final_state. Negative: a zero state, not stored;
            both: a padded row, whose output is 0. A row may read and write one slot; a slot that one row reads and
            another row of the same call writes is a race, and what that reader computes is undefined.
        has_initial_state: [N] bool, False: start from zero.
        checkpoints: [M, 2] int32, rows (sequence, offset), offset a multiple of 64.
        checkpoint_state: [M, HV, V, K], written with the state after `offset` tokens; with checkpoint_index a pool.
        checkpoint_index: [M] int32, slots of checkpoint_state.
        out: [B, T, HV, V], written in place and returned. None: a fresh one of the type of v.
        batch_invariant: Whether a sequence alone and in a batch must agree bit by bit.
        check_cu_seqlens: Whether a GPU call reads cu_seqlens back and checks it, which synchronises. The CPU always
            checks.
        num_threads: Of the CPU backend, at most 1024; 0 uses what OpenMP would. A process forked from one that has
            computed uses one thread.
        backend: None chooses by where the tensors are. For host memory "cpu", or "reference" (fp64, slow, for
            checking); for a GPU "cuda", which leaves the path to the library, or "cuda/two_kernel" or "cuda/fused",
            which fix it (`cuda_path` in the C interface and in messages).
        stream: A cudaStream_t as an integer; None is the current stream of q's framework.
        workspace: One-dimensional GPU memory for the call; None allocates through q's framework. The fused kernel gives
            the same bits with less than it can use, and is slower.

    Returns:
        out and final_state (None where there is none), of the library of v.

    Raises:
        TypeError: An argument of the wrong kind or type.
        ValueError: A shape, stride, alignment, overlap or range.
        RuntimeError: Tensors on different devices, a device without a backend, a CUDA error.
        NotImplementedError: A tensor requires grad, or has a tangent, and gradients are on.
        MemoryError: Of the CPU backend.
    """
    made_out = out is None and hasattr(v, "shape")
    if made_out:
        out = _arrays.empty(v, tuple(v.shape), zero=cu_seqlens is not None)
    if not isinstance(output_final_state, bool):
        raise TypeError(f"output_final_state: got {output_final_state!r}, accepted is True or False")
    state_shape = None
    if final_state is None and output_final_state and write_index is None:
        state_shape = _final_state_shape(q, v, cu_seqlens)
        if state_shape is not None:
            final_state = _arrays.empty(v, state_shape, float32=True)
    _operators_for(q).forward(
        (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, initial_state, final_state, read_index, write_index)
        + (has_initial_state, checkpoints, checkpoint_state, checkpoint_index, out),
        scale,
        lower_bound,
        gate,
        beta_form,
        l2norm,
        batch_invariant,
        check_cu_seqlens,
        backend,
        num_threads,
        stream,
        workspace,
    )
    if made_out:
        out = _arrays.finish(v, out)
    if state_shape is not None:
        final_state = _arrays.finish(v, final_state)
    return out, final_state


def decode(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    A_log: Array | None = None,
    dt_bias: Array | None = None,
    scale: float | None = None,
    lower_bound: float = -5.0,
    gate: Gate = "bounded",
    beta_form: BetaForm = "logits",
    l2norm: bool = True,
    cu_seqlens: Array | None = None,
    read_index: Array | None = None,
    write_index: Array | None = None,
    has_initial_state: Array | None = None,
    out: Array | None = None,
    batch_invariant: bool = False,
    check_cu_seqlens: bool = False,
    num_threads: int = 0,
    backend: Backend | None = None,
    stream: int | None = None,
    workspace: Array | None = None,
) -> Array:
    """KDA over up to eight tokens a sequence, on a state pool that is read and written in place; returns the output.

    Equal to `forward` over the same tokens, within rounding. What is not listed here means what it means there.

    Args:
        q, k, v, g, beta: As for `forward`, T <= 8; or B = 1 with cu_seqlens and at most 8 tokens a sequence.
        state: [N, HV, V, K], read and written; with an index a pool [slots, HV, V, K], whose slots may be padded. JAX
            arrays cannot be written: use `forward` with initial_state there.
        read_index: [N] int32, slots to read; None: sequence n reads slot n.
        write_index: [N] int32, slots to write, with read_index; None: those that are read. Negative indices as for `forward`.
        out: [B, T, HV, V], written in place and returned. None: a fresh one of the type of v.
        backend: As for `forward`, but for the paths: "cpu", "reference" or "cuda".

    Returns:
        out.

    Raises:
        As `forward`.
    """
    made_out = out is None and hasattr(v, "shape")
    if made_out:
        out = _arrays.empty(v, tuple(v.shape), zero=cu_seqlens is not None)
    _operators_for(q).decode(
        (q, k, v, g, beta, A_log, dt_bias, cu_seqlens, state, read_index, write_index, has_initial_state, out),
        scale,
        lower_bound,
        gate,
        beta_form,
        l2norm,
        batch_invariant,
        check_cu_seqlens,
        backend,
        num_threads,
        stream,
        workspace,
    )
    return _arrays.finish(v, out) if made_out else out


def info() -> dict[str, Any]:
    """What this build and machine can do: version, build, CPU instruction sets and threads, CUDA devices or why there
    are none. What `flashkda info --json` prints.

    Raises:
        RuntimeError: The compiled module is missing.
    """
    description: dict[str, Any] = json.loads(native.info())
    return description

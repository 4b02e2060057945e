"""Every refusal has its own message: the argument, what it got, what is accepted. And nothing is written."""

import ctypes
import re
import subprocess
import sys

import flash_kda
import ml_dtypes
import numpy as np
import pytest
from problem import gate_parameters, states, tensors


class CudaArray:
    """Claims to be in the memory of a GPU that nobody has."""

    shape = (1, 40, 2, 128)
    dtype = np.dtype(np.float32)

    def __init__(self, device=0, kind=2):
        self.device = (kind, device)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        """A capsule of host memory whose device, behind the data pointer, is overwritten."""
        capsule = np.zeros(self.shape, self.dtype).__dlpack__()
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.cast(get_pointer(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32 * 2))[0][:] = self.device
        return capsule


def head_first():
    return {name: value.swapaxes(1, 2).copy() for name, value in tensors().items()}


X = tensors()
READ_ONLY = X["v"].copy()
READ_ONLY.flags.writeable = False
WIDE = np.zeros((1, 40, 2, 256), np.float32)
PACKED_BYTES = np.zeros((1, 40, 2, 128), np.dtype([("a", "f4"), ("b", "u1")]))["a"]
INDEX = np.zeros(1, np.int32)
ONE = states()

TABLE = {
    # Kind and type
    "list": ({"q": [1.0]}, TypeError, "q: got list, accepted is a tensor of NumPy"),
    "list as cu_seqlens": ({"cu_seqlens": [0, 40]}, TypeError, "cu_seqlens: got list"),
    "q None": ({"q": None}, TypeError, "q: required, but None"),
    "v None": ({"v": None}, TypeError, "v: required, but absent"),
    "float64": ({"q": X["q"].astype(np.float64)}, TypeError, "q: got dtype float64"),
    "int16": ({"g": X["g"].astype(np.int16)}, TypeError, "g: got dtype int16, accepted is one of float32"),
    "complex": ({"g": X["g"].astype(np.complex64)}, TypeError, "g: got dtype complex64"),
    "object": ({"g": X["g"].astype(object)}, TypeError, "g: got dtype object_"),
    "byte order": ({"k": X["k"].astype(">f4")}, TypeError, "k: got elements in foreign byte order"),
    "C33 q, k differ": (
        {"k": X["k"].astype(np.float16)},
        TypeError,
        "k: got dtype float16, accepted is the dtype of q",
    ),
    "A_log bfloat16": ({"A_log": np.zeros(2, ml_dtypes.bfloat16)}, TypeError, "A_log: got dtype bfloat16"),
    "cu float": ({"cu_seqlens": np.zeros(2, np.float32)}, TypeError, "cu_seqlens: got dtype float32"),
    "index int64": (
        {"initial_state": ONE, "read_index": INDEX.astype(np.int64)},
        TypeError,
        "read_index: got dtype int64",
    ),
    "scale": ({"scale": "big"}, TypeError, "scale: got str, accepted is a number"),
    "lower_bound": ({"lower_bound": None}, TypeError, "lower_bound: got NoneType, accepted is a number"),
    "gate kind": ({"gate": 1}, TypeError, "gate: got 1, accepted is one of 'bounded', 'softplus', 'log'"),
    "backend kind": ({"backend": 2}, TypeError, "backend: got 2, accepted is one of 'cpu', 'cuda'"),
    "l2norm": ({"l2norm": "yes"}, TypeError, "l2norm: got 'yes', accepted is True or False"),
    "l2norm of NumPy": ({"l2norm": np.True_}, TypeError, "l2norm: got np.True_, accepted is True or False"),
    "final state": ({"output_final_state": "no"}, TypeError, "output_final_state: got 'no', accepted is True or False"),
    "threads": ({"num_threads": 1.5}, TypeError, "num_threads: got 1.5, accepted is an integer"),
    "threads bool": ({"num_threads": True}, TypeError, "num_threads: got True, accepted is an integer"),
    "stream": ({"stream": "main"}, TypeError, "stream: got str, accepted is a cudaStream_t"),
    # Value
    "gate": ({"gate": "sigmoid"}, ValueError, "gate: got 'sigmoid', accepted is one of"),
    "beta_form": ({"beta_form": "raw"}, ValueError, "beta_form: got 'raw', accepted is one of 'logits'"),
    "backend": (
        {"backend": "cuda/three_kernel"},
        ValueError,
        "backend: got 'cuda/three_kernel', accepted is one of "
        "'cpu', 'cuda', 'reference', 'cuda/two_kernel', 'cuda/fused'$",
    ),
    "scale infinite": ({"scale": float("inf")}, ValueError, "scale: got inf"),
    "scale range": ({"scale": 1e300}, ValueError, re.escape("scale: got 1e+300, accepted is a number in the range")),
    "lower_bound range": ({"lower_bound": -6.0}, ValueError, "lower_bound: got -6, accepted is -5 <= lower_bound < 0"),
    "threads range": ({"num_threads": -1}, ValueError, "num_threads: got -1"),
    "threads bits": ({"num_threads": 2**40}, ValueError, "num_threads: got 1099511627776, accepted is an integer of 32"),
    "scalar": ({"A_log": np.float32(1)}, ValueError, "A_log: got a scalar"),
    "rank 5": ({"q": X["q"][None]}, ValueError, "q: got rank 5, accepted is 1 to 4"),
    "rank 3": ({"q": X["q"][0]}, ValueError, re.escape("q: got shape [40, 2, 128], accepted is [B, T, H, K]")),
    "k shape": ({"k": X["k"][:, :-1]}, ValueError, re.escape("k: got shape [1, 39, 2, 128], accepted is")),
    "C35 g shape": ({"g": X["beta"]}, ValueError, re.escape("g: got shape [1, 40, 2], accepted is [B, T, HV, K]")),
    "C32 dt_bias": ({"dt_bias": np.zeros(2, np.float32)}, ValueError, re.escape("dt_bias: got shape [2], accepted is")),
    "strided last": ({"q": WIDE[..., ::2]}, ValueError, "q: got stride 2 in dimension 3"),
    "negative stride": ({"q": X["q"][:, ::-1]}, ValueError, "q: got stride -256 in dimension 1"),
    "uneven stride": ({"q": PACKED_BYTES}, ValueError, "q: got a stride of 5 bytes in dimension 3"),
    "read-only out": ({"out": READ_ONLY}, ValueError, "out: its memory is read-only"),
    "out is q": ({"out": X["q"]}, ValueError, "out: its memory overlaps q"),
    "out shape": ({"out": WIDE}, ValueError, "out: got shape"),
    "cu start": ({"cu_seqlens": np.array([1, 40])}, ValueError, re.escape("cu_seqlens[0]: got 1, accepted is 0")),
    "cu falls": ({"cu_seqlens": np.array([0, 9, 3])}, ValueError, re.escape("cu_seqlens[2]: got 3 after 9")),
    "cu end": ({"cu_seqlens": np.array([0, 41])}, ValueError, re.escape("cu_seqlens[1]: got 41, accepted is at most")),
    "cu rank": ({"cu_seqlens": np.zeros((2, 2), np.int32)}, ValueError, "cu_seqlens: got shape"),
    "state shape": ({"initial_state": states(N=3)}, ValueError, "initial_state: got shape"),
    "index alone": ({"write_index": INDEX}, ValueError, "write_index: given without final_state"),
    "log gate": ({"gate": "log", "A_log": np.zeros(2, np.float32)}, ValueError, "A_log: given with the log gate"),
    "checkpoint": (
        {"checkpoints": np.array([[0, 10]], np.int32), "checkpoint_state": ONE.copy()},
        ValueError,
        re.escape("checkpoints[0]: got offset 10, accepted is 0 or a positive multiple of 64"),
    ),
    "workspace rank": ({"workspace": WIDE}, ValueError, "workspace: got rank 4"),
    # Device
    "k elsewhere": ({"k": CudaArray(), "stream": 0}, RuntimeError, "k: on cuda:0, accepted is the device of q, cpu"),
    "unknown stream": ({"k": CudaArray()}, RuntimeError, "stream: got None, but the current stream of k"),
    "other device": (
        {"q": CudaArray(kind=8)},
        RuntimeError,
        "q: on DLPack device type 8, accepted is the CPU or a CUDA",
    ),
    **{
        f"{backend} for the CPU": (
            {"backend": backend},
            RuntimeError,
            f"backend: got '{backend}' for tensors on cpu, accepted there is one of 'cpu', 'reference'$",
        )
        for backend in ("cuda", "cuda/two_kernel", "cuda/fused")
    },
    # C46
    "C46 head first": (
        head_first() | gate_parameters() | {"out": np.empty((1, 2, 40, 128), np.float32)},
        ValueError,
        r"A_log: got shape \[2\], accepted is \[HV\] = \[40\] \(is q \[B, H, T, K\]\?",
    ),
    "C46 head first but beta": (
        head_first() | {"beta": X["beta"]},
        ValueError,
        r"beta: got shape \[1, 40, 2\], accepted is .* \(is q \[B, H, T, K\]\?",
    ),
    "C46 g of fp32 scalars": ({"g": X["beta"].astype(np.float32)}, ValueError, "g: got shape"),
}


def test_integers_of_numpy_are_integers():
    out, _ = flash_kda.forward(**X, num_threads=np.int64(1))
    np.testing.assert_array_equal(out, flash_kda.forward(**X, num_threads=1)[0])


@pytest.mark.parametrize("case", TABLE)
def test_refusal(case):
    changes, error, message = TABLE[case]
    out = np.full_like(X["v"], 7.0)
    arguments = {**X, "out": out, "output_final_state": False, **changes}
    with pytest.raises(error, match=message) as caught:
        flash_kda.forward(**arguments)
    assert caught.type is error
    assert (out == 7.0).all()


def test_C46_no_out():
    with pytest.raises(TypeError, match="out: required, but absent"):
        flash_kda.fwd(*X.values(), 1.0, None, None, None, -5.0)


def test_C46_beta_after_the_sigmoid_has_a_name():
    """Probabilities cannot be told from logits by looking; the keyword says what they are."""
    x = dict(X)
    x["beta"] = (1 / (1 + np.exp(-x["beta"].astype(np.float64)))).astype(np.float32)
    out, _ = flash_kda.forward(**x, beta_form="probabilities")
    np.testing.assert_allclose(out, flash_kda.forward(**X)[0], rtol=1e-4, atol=1e-6)


def test_messages_are_distinct():
    """No two mistakes of the table read the same; "C46 g" is the mistake of C35."""
    messages = []
    for case, (changes, _, _) in TABLE.items():
        if case != "C46 g of fp32 scalars":
            with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
                flash_kda.forward(**{**X, "out": np.empty_like(X["v"]), "output_final_state": False, **changes})
            messages.append(str(caught.value))
    assert len(set(messages)) == len(messages)


def test_arrays_of_an_unknown_library():
    class Foreign:
        shape = (1, 40, 2, 128)

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(TypeError, match="out: cannot be allocated for v of type .*Foreign"):
        flash_kda.forward(**{**X, "v": Foreign()})
    out = {"out": np.empty_like(X["v"]), "output_final_state": False}
    with pytest.raises(TypeError, match="v: got .*Foreign, accepted is a tensor of NumPy"):
        flash_kda.forward(**{**X, "v": Foreign(), **out})


@pytest.mark.skipif(flash_kda.info()["cuda"]["available"], reason="this machine has a GPU")
def test_C45_without_a_gpu_a_gpu_call_says_what_is_missing():
    x = {name: CudaArray() for name in ("q", "k", "v", "g", "beta", "out")}
    x["beta"].shape = (1, 40, 2)
    why = re.escape(flash_kda.info()["cuda"]["why"])
    with pytest.raises(RuntimeError, match=why):
        flash_kda.forward(**x, output_final_state=False, stream=0)


def test_C45_import_without_the_compiled_module():
    code = """
import sys
sys.modules["flash_kda._native"] = None
import flash_kda
try:
    flash_kda.info()
except RuntimeError as error:
    assert "the compiled module flash_kda._native cannot be imported" in str(error), error
else:
    raise AssertionError("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_decode_names_its_own_arguments():
    x, state = tensors(B=2, T=1), states(N=2)
    with pytest.raises(TypeError, match="state: required, but absent"):
        flash_kda.decode(**x, state=None)
    with pytest.raises(ValueError, match="write_index: given without read_index"):
        flash_kda.decode(**x, state=state, write_index=np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"state: got shape \[3, 2, 128, 128\], accepted is \[N, HV, V, K\] = \[2, 2"):
        flash_kda.decode(**x, state=states(N=3))  # a pool goes with an index
    with pytest.raises(ValueError, match="backend: got 'cuda/fused', accepted is one of 'cpu', 'cuda', 'reference'$"):
        flash_kda.decode(**x, state=state, backend="cuda/fused")
    state.flags.writeable = False
    with pytest.raises(ValueError, match="state: its memory is read-only"):
        flash_kda.decode(**x, state=state)

"""decode: one to eight tokens on a state pool, equal to forward over the same tokens."""

import flash_kda
import ml_dtypes
import numpy as np
import pytest
from problem import assert_close, gate_parameters, states, tensors
from recurrence import kda


@pytest.mark.parametrize("T", [1, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_against_the_recurrence(T, dtype):
    x, gate = tensors(B=3, T=T, H=2, HV=4, dtype=dtype), gate_parameters(4)
    state = states(N=3, HV=4)
    expected, final, _ = kda(**x, **gate, initial_state=state)
    out = flash_kda.decode(**x, state=state, **gate)
    assert out.dtype == dtype
    assert_close(out, expected)
    assert_close(state, final)


def test_pool_with_padded_rows_and_new_requests():
    """A batch padded to a fixed size, as inside a CUDA graph: row 2 is padding, row 1 a new request."""
    x, pool = tensors(B=4, T=1), states(N=6)
    before = pool.copy()
    read = np.array([4, 1, -1, 0], np.int32)
    known = np.array([True, False, True, True])
    out = flash_kda.decode(**x, state=pool, read_index=read, has_initial_state=known)
    initial = before[read]
    initial[1:3] = 0
    expected, final, _ = kda(**x, initial_state=initial)
    rows = [0, 1, 3]
    assert_close(out[rows], expected[rows])
    assert (out[2] == 0).all()
    assert_close(pool[read[rows]], final[rows])
    np.testing.assert_array_equal(pool[[2, 3, 5]], before[[2, 3, 5]])


def test_other_slots_to_write():
    x, pool = tensors(B=2, T=2), states(N=5)
    before = pool.copy()
    flash_kda.decode(**x, state=pool, read_index=np.array([0, 1], np.int32), write_index=np.array([3, -1], np.int32))
    _, final, _ = kda(**x, initial_state=before[:2])
    assert_close(pool[3], final[0])
    np.testing.assert_array_equal(pool[[0, 1, 2, 4]], before[[0, 1, 2, 4]])


@pytest.mark.parametrize("gate", ["bounded", "softplus", "log"])
def test_packed_tokens_equal_forward(gate):
    x = tensors(T=11, K=64, V=100)
    x["g"] = -np.abs(x["g"])
    cu = np.array([0, 8, 8, 10, 11], np.int32)
    state = states(N=4, V=100, K=64)
    options = {"gate": gate, "beta_form": "twice_sigmoid", "l2norm": False, "scale": 0.1, "cu_seqlens": cu}
    x["k"] /= np.linalg.norm(x["k"], axis=-1, keepdims=True)
    out, final = flash_kda.forward(**x, **options, initial_state=state)
    given = np.empty_like(out)
    assert flash_kda.decode(**x, **options, state=state, out=given) is given
    assert_close(given, out)
    assert_close(state, final)


def test_C17_a_last_token_apart():
    x = tensors(T=65)
    whole, state = flash_kda.forward(**x)
    first, carried = flash_kda.forward(**{name: value[:, :64] for name, value in x.items()})
    last = flash_kda.decode(**{name: value[:, 64:] for name, value in x.items()}, state=carried)
    assert_close(np.concatenate([first, last], axis=1), whole)
    assert_close(carried, state)


def test_more_than_eight_tokens_are_refused():
    with pytest.raises(ValueError, match="q: got T = 9, accepted by decode is at most 8"):
        flash_kda.decode(**tensors(T=9), state=states())

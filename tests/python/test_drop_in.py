"""fwd and get_workspace_size: names, order and behaviour of the published package."""

import inspect

import flash_kda
import ml_dtypes
import numpy as np
import pytest
from problem import assert_close, assert_matches, gate_parameters, states, tensors


def test_signatures_are_those_of_the_published_package():
    fwd = inspect.signature(flash_kda.fwd).parameters.values()
    required = ["q", "k", "v", "g", "beta", "scale", "out", "A_log", "dt_bias", "lower_bound"]
    assert [p.name for p in fwd] == required + ["initial_state", "final_state", "cu_seqlens"]
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in fwd)
    assert [p.default for p in fwd] == [inspect.Parameter.empty] * 10 + [None] * 3
    size = inspect.signature(flash_kda.get_workspace_size).parameters
    assert list(size) == ["T_total", "H", "N"]
    assert [p.default for p in size.values()] == [inspect.Parameter.empty] * 2 + [1]


@pytest.mark.parametrize("state_dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_writes_out_and_final_state_in_place(dtype, state_dtype):
    x, gate = tensors(T=70, dtype=dtype), gate_parameters()
    initial = states(dtype=state_dtype)
    out, final = np.full_like(x["v"], np.nan), np.full_like(initial, np.nan)
    result = flash_kda.fwd(*x.values(), 0.3, out, gate["A_log"], gate["dt_bias"], -4.0, initial, final)
    assert result is None
    assert_matches((out, final), x, **gate, scale=0.3, lower_bound=-4.0, initial_state=initial)


def test_is_forward_with_its_defaults():
    x, gate = tensors(), gate_parameters()
    out = np.empty_like(x["v"])
    flash_kda.fwd(*x.values(), 128**-0.5, out, **gate, lower_bound=-5.0)
    np.testing.assert_array_equal(out, flash_kda.forward(**x, **gate)[0])


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_packed_sequences(index):
    x, gate = tensors(T=60), gate_parameters()
    cu = np.array([0, 1, 1, 38, 54], index)
    initial, final = states(N=4), np.full((4, 2, 128, 128), np.nan, np.float32)
    out = np.full_like(x["v"], 7.0)
    flash_kda.fwd(
        *x.values(), 1.0, out, **gate, lower_bound=-5.0, initial_state=initial, final_state=final, cu_seqlens=cu
    )
    assert_matches((out, final), x, **gate, scale=1.0, initial_state=initial, cu_seqlens=cu)
    assert (out[:, 54:] == 7.0).all()
    np.testing.assert_array_equal(final[1], initial[1])


def test_fla_style_call_with_mixed_state_types():
    """fla hands a bfloat16 initial state on and always allocates the final one as float32."""
    x, gate = tensors(dtype=ml_dtypes.bfloat16), gate_parameters()
    initial, final = states(dtype=ml_dtypes.bfloat16), np.empty((1, 2, 128, 128), np.float32)
    out = np.empty_like(x["v"])
    flash_kda.fwd(**x, scale=None, out=out, **gate, lower_bound=-5.0, initial_state=initial, final_state=final)
    assert_matches((out, final), x, **gate, initial_state=initial)


def test_C37_a_second_call_leaves_the_first_output():
    first, second = tensors(seed=1), tensors(seed=2)
    kept, _ = flash_kda.forward(**first)
    copy = kept.copy()
    flash_kda.forward(**second)
    np.testing.assert_array_equal(kept, copy)
    assert not np.array_equal(kept, flash_kda.forward(**second)[0])


def test_C38_inputs_are_unchanged():
    x, gate, initial = tensors(T=100), gate_parameters(), states()
    cu = np.array([0, 100], np.int64)
    inputs = {**x, **gate, "initial_state": initial, "cu_seqlens": cu}
    before = {name: value.copy() for name, value in inputs.items()}
    flash_kda.forward(**inputs)
    for name, value in inputs.items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_workspace_size_is_zero_without_a_gpu():
    assert flash_kda.get_workspace_size(np.int64(8192), 96, 4) == flash_kda.get_workspace_size(8192, 96, 4)
    if flash_kda.info()["cuda"]["available"]:
        assert flash_kda.get_workspace_size(8192, 96, 4) >= 0
    else:
        assert flash_kda.get_workspace_size(8192, 96, 4) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.5, 2), TypeError, "T_total: got 1.5, accepted is an integer"),
        ((8, True), TypeError, "H: got True, accepted is an integer"),
        ((-1, 2), ValueError, "T_total: got -1"),
        ((1, 0), ValueError, "H: got 0"),
    ],
)
def test_workspace_size_refuses(arguments, error, message):
    with pytest.raises(error, match=message):
        flash_kda.get_workspace_size(*arguments)


def test_empty_batch():
    """C19: nothing to do is no error, and the final state is the initial one."""
    x, initial = tensors(T=0), states()
    out, final = flash_kda.forward(**x, initial_state=initial)
    assert out.shape == (1, 0, 2, 128)
    np.testing.assert_array_equal(final, initial)
    assert_close(flash_kda.forward(**x)[1], np.zeros_like(initial))

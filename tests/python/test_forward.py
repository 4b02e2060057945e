"""forward: every option against the fp64 recurrence, and the ways in which serving engines call it."""

import flash_kda
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problem import assert_close, assert_matches, gate_parameters, states, tensors
from recurrence import kda


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    packed=st.booleans(),
    H=st.integers(1, 3),
    group=st.integers(1, 2),
    K=st.sampled_from([1, 60, 64, 100, 128, 256]),
    V=st.sampled_from([1, 60, 64, 128, 256]),
    gate=st.sampled_from(["bounded", "softplus", "log"]),
    beta_form=st.sampled_from(["logits", "probabilities", "twice_sigmoid"]),
    l2norm=st.booleans(),
    with_parameters=st.booleans(),
    with_state=st.booleans(),
    scale=st.sampled_from([None, 0.25, -1.0]),
    lower_bound=st.sampled_from([-5.0, -0.5]),
    seed=st.integers(0, 1000),
)
def test_options(
    lengths, packed, H, group, K, V, gate, beta_form, l2norm, with_parameters, with_state, scale, lower_bound, seed
):
    HV = H * group
    B, T = (1, sum(lengths)) if packed else (len(lengths), lengths[0])
    x = tensors(B, T, H, HV, K, V, seed=seed)
    options = {"gate": gate, "beta_form": beta_form, "l2norm": l2norm, "scale": scale, "lower_bound": lower_bound}
    if beta_form == "probabilities":
        x["beta"] = (1 / (1 + np.exp(-x["beta"]))).astype(np.float32)
    if not l2norm:
        x["k"] /= np.linalg.norm(x["k"], axis=-1, keepdims=True)
    if gate == "log":
        x["g"] = -np.abs(x["g"])
    elif with_parameters:
        options |= gate_parameters(HV, K)
    if with_state:
        options["initial_state"] = states(len(lengths), HV, V, K)
    if packed:
        options["cu_seqlens"] = np.cumsum([0, *lengths]).astype(np.int32)
    assert_matches(flash_kda.forward(**x, **options), x, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_fresh_outputs_have_the_type_of_v_and_a_float32_state(dtype):
    x = tensors(dtype=dtype)
    out, final = flash_kda.forward(**x)
    assert out.dtype == dtype and out.shape == x["v"].shape
    assert final.dtype == np.float32
    assert_matches((out, final), x)


def test_given_outputs_are_the_ones_returned():
    x = tensors()
    out, final = np.empty_like(x["v"]), states()
    result = flash_kda.forward(**x, out=out, final_state=final)
    assert result[0] is out and result[1] is final
    assert flash_kda.forward(**x, output_final_state=False)[1] is None


def test_rows_behind_the_sequences_are_zero_in_a_fresh_out():
    """C23, C24: those rows are not read either."""
    x = tensors(T=20)
    for value in x.values():
        value[:, 12:] = np.nan
    cu = np.array([0, 5, 12], np.int32)
    out, final = flash_kda.forward(**x, cu_seqlens=cu)
    assert (out[:, 12:] == 0).all()
    assert_matches((out[:, :12], final), {name: value[:, :12] for name, value in x.items()}, cu_seqlens=cu)


def test_serving_call():
    """Slices of one fused projection, beta a row-strided slice, flat dt_bias, int32 cu_seqlens, a state of another
    type."""
    T, H = 90, 3
    rng = np.random.default_rng(5)
    fused = rng.standard_normal((1, T, 3 * H * 128)).astype(ml_dtypes.bfloat16)
    q, k, v = (fused[..., i * H * 128 : (i + 1) * H * 128].reshape(1, T, H, 128) for i in range(3))
    assert not q.flags.owndata and q.strides[1] == 3 * H * 128 * 2
    x = tensors(T=T, H=H, dtype=ml_dtypes.bfloat16) | {"q": q, "k": k, "v": v}
    wide = rng.standard_normal((1, T, 6288)).astype(ml_dtypes.bfloat16)
    x["beta"] = wide[..., 17 : 17 + H]
    gate = gate_parameters(H)
    cu = np.array([0, 1, 77, 90], np.int32)
    initial, final = states(N=3, HV=H), np.empty((3, H, 128, 128), ml_dtypes.bfloat16)
    out, _ = flash_kda.forward(
        **x,
        A_log=gate["A_log"],
        dt_bias=gate["dt_bias"].ravel(),
        cu_seqlens=cu,
        initial_state=initial,
        final_state=final,
    )
    assert_matches((out, final), x, **gate, cu_seqlens=cu, initial_state=initial)


@pytest.mark.parametrize("parameters", [{}, {"A_log"}, {"dt_bias"}])
def test_absent_gate_parameters(parameters):
    x = tensors()
    given_ones = {name: value for name, value in gate_parameters().items() if name in parameters}
    assert_matches(flash_kda.forward(**x, **given_ones), x, **given_ones)


@pytest.mark.parametrize("same", [True, False])
def test_state_pool(same):
    """Padded slots, read and written in one call; a fresh sequence; a state not stored; a padded row."""
    lengths, slots = [9, 20, 0, 33, 4], 7
    T = sum(lengths)
    x = tensors(T=T)
    cu = np.cumsum([0, *lengths]).astype(np.int32)
    memory = np.random.default_rng(3).standard_normal((slots, 2 * 128 * 128 + 64)).astype(np.float32)
    pool = np.lib.stride_tricks.as_strided(memory, (slots, 2, 128, 128), (memory.strides[0], 128 * 128 * 4, 512, 4))
    before = memory.copy()
    read = np.array([5, 0, 3, 2, -1], np.int32)
    write = read if same else np.array([1, -1, 4, 6, -1], np.int32)
    fresh = np.array([True, True, True, False, True])
    out, returned = flash_kda.forward(
        **x,
        cu_seqlens=cu,
        initial_state=pool,
        final_state=pool,
        read_index=read,
        write_index=write,
        has_initial_state=fresh,
    )
    assert returned is pool
    initial = before[:, : 2 * 128 * 128].reshape(slots, 2, 128, 128)[read]
    initial[~fresh] = 0
    initial[read < 0] = 0
    expected, final, _ = kda(**x, cu_seqlens=cu, initial_state=initial)
    rows = slice(0, T - lengths[-1])
    assert_close(out[:, rows], expected[:, rows])
    assert (out[:, T - lengths[-1] :] == 0).all()
    for n, slot in enumerate(write):
        if slot >= 0:
            assert_close(pool[slot], final[n])
    untouched = np.setdiff1d(np.arange(slots), write)
    np.testing.assert_array_equal(memory[untouched], before[untouched])
    np.testing.assert_array_equal(memory[:, 2 * 128 * 128 :], before[:, 2 * 128 * 128 :])


@pytest.mark.parametrize("indexed", [False, True])
def test_checkpoints(indexed):
    x = tensors(T=300)
    cu = np.array([0, 200, 300], np.int32)
    marks = np.array([[0, 64], [1, 64], [0, 192], [1, 128]], np.int32)  # the last is behind its sequence's end
    saved = np.full((6 if indexed else 4, 2, 128, 128), 7.0, np.float32)
    index = np.array([5, 0, -1, 2], np.int32)
    pool = {"checkpoint_index": index} if indexed else {}
    out = flash_kda.forward(**x, cu_seqlens=cu, checkpoints=marks, checkpoint_state=saved, **pool)
    _, _, expected = kda(**x, cu_seqlens=cu, checkpoints=marks.tolist())
    assert sorted(expected) == [0, 1, 2]
    assert_matches(out, x, cu_seqlens=cu)
    slots = index if indexed else np.arange(4)
    stored = {int(slots[m]): state for m, state in expected.items() if slots[m] >= 0}
    for slot in range(len(saved)):
        if slot in stored:
            assert_close(saved[slot], stored[slot])
        else:
            assert (saved[slot] == 7.0).all()


def test_streaming_a_prompt_in_pieces_is_bitwise_the_whole():
    x = tensors(T=192)
    whole, state = flash_kda.forward(**x)
    carried, parts = None, []
    for begin in range(0, 192, 64):
        piece = {name: value[:, begin : begin + 64] for name, value in x.items()}
        out, carried = flash_kda.forward(**piece, initial_state=carried)
        parts.append(out)
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    np.testing.assert_array_equal(carried, state)


def test_reference_backend_and_threads():
    x, gate = tensors(B=3, T=50), gate_parameters()
    exact = flash_kda.forward(**x, **gate, backend="reference")
    assert_matches(exact, x, **gate)
    one = flash_kda.forward(**x, **gate, num_threads=1)
    two = flash_kda.forward(**x, **gate, num_threads=2, backend="cpu", batch_invariant=True)
    np.testing.assert_array_equal(one[0], two[0])


def test_C31_the_state_is_V_by_K():
    x, initial = tensors(T=3, V=64), states(V=64)
    assert_matches(flash_kda.forward(**x, initial_state=initial), x, initial_state=initial)
    with pytest.raises(ValueError, match="initial_state: got shape"):
        flash_kda.forward(**x, initial_state=initial.transpose(0, 1, 3, 2).copy())


def test_C36_grouped_value_heads():
    x = tensors(B=2, T=64, H=4, HV=8)
    assert_matches(flash_kda.forward(**x), x)

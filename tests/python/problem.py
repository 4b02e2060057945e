"""Random inputs, and how results are compared."""

from __future__ import annotations

import numpy as np
from recurrence import kda

# Relative Frobenius error of the fp32 CPU backend against fp64; results in another type add half a unit of their
# last place.
FP32 = 5e-6
ROUNDING = {"float32": 0.0, "float64": 0.0, "bfloat16": 2.0**-9, "float16": 2.0**-11}


def tensors(B=1, T=40, H=2, HV=None, K=128, V=128, dtype=np.float32, seed=0):
    """q, k, v, g, beta of `dtype` by name."""
    HV = H if HV is None else HV
    rng = np.random.default_rng(seed)
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, HV, V), "g": (B, T, HV, K), "beta": (B, T, HV)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def gate_parameters(HV=2, K=128, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "A_log": rng.uniform(0.0, 1.0, HV).astype(np.float32),
        "dt_bias": rng.standard_normal((HV, K)).astype(np.float32),
    }


def states(N=1, HV=2, V=128, K=128, dtype=np.float32, seed=2):
    return np.random.default_rng(seed).standard_normal((N, HV, V, K)).astype(dtype)


def relative_error(actual, expected):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    norm = np.linalg.norm(expected)
    return np.linalg.norm(actual - expected) / (norm if norm > 0 else 1.0)


def assert_close(actual, expected):
    tolerance = FP32 + ROUNDING[str(actual.dtype).removeprefix("torch.")]
    assert np.isfinite(np.asarray(actual, np.float64)).all()
    assert relative_error(actual, expected) <= tolerance


def assert_matches(result, inputs, **options):
    """`result` = (out, final_state) against the recurrence over the same inputs; rows of no sequence are not looked
    at."""
    out, final_state = result
    expected, state, _ = kda(**inputs, **options)
    used = ~np.isnan(expected)
    assert_close(np.asarray(out)[used], expected[used])
    if final_state is not None:
        assert_close(final_state, state)

"""The same call from JAX or CuPy: arrays come in without a copy, results are arrays of the same library."""

import importlib.util
import sys

import flash_kda

if importlib.util.find_spec("jax"):
    import jax
    import jax.numpy as xp

    if jax.default_backend() != "cpu":
        sys.exit(print("skipped: JAX arrays on an accelerator are not supported yet"))
elif importlib.util.find_spec("cupy"):
    import cupy as xp
else:
    sys.exit(print("skipped: neither jax nor cupy is installed"))

T, H, K = 100, 2, 128
ramp = xp.linspace(-1, 1, T * H * K, dtype=xp.float32).reshape(1, T, H, K)
x = {"q": xp.sin(90 * ramp), "k": xp.cos(70 * ramp), "v": xp.sin(50 * ramp), "g": ramp, "beta": ramp[..., 0]}
out, final_state = flash_kda.forward(**x)
print(type(out).__module__, out.shape, final_state.shape)

if xp.__name__ == "jax.numpy":

    @jax.jit
    def layer(x):
        """Inside jit there is no memory to pass on: a callback runs the call when there is."""
        shape = jax.ShapeDtypeStruct(x["v"].shape, x["v"].dtype)
        return jax.pure_callback(lambda arrays: flash_kda.forward(**arrays)[0], shape, x)

    assert xp.array_equal(layer(x), out)

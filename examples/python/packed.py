"""Sequences of different lengths in one call, without padding: cu_seqlens says where each begins and ends."""

import flash_kda
import numpy as np

lengths = [1, 700, 16, 0, 83]
H, K = 2, 128
rng = np.random.default_rng(0)
cu_seqlens = np.cumsum([0, *lengths]).astype(np.int32)
T = int(cu_seqlens[-1])
x = {name: rng.standard_normal((1, T, H, K), dtype=np.float32) for name in ("q", "k", "v", "g")}
x["beta"] = rng.standard_normal((1, T, H), dtype=np.float32)

out, states = flash_kda.forward(**x, cu_seqlens=cu_seqlens)
print(len(lengths), "sequences, output", out.shape, "states", states.shape)

# Each is what it would be alone.
for n, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
    alone, state = flash_kda.forward(**{name: array[:, begin:end] for name, array in x.items()})
    np.testing.assert_allclose(out[:, begin:end], alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(states[n], state[0], rtol=1e-4, atol=1e-6)

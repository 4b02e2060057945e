"""One layer's worth of Kimi Delta Attention with NumPy."""

import flash_kda
import numpy as np

B, T, H, K, V = 2, 500, 4, 128, 128
rng = np.random.default_rng(0)


def random(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


out, final_state = flash_kda.forward(
    q=random(B, T, H, K),
    k=random(B, T, H, K),
    v=random(B, T, H, V),
    g=random(B, T, H, K),  # raw gate: lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) is the log of the decay
    beta=random(B, T, H),  # logits
    A_log=np.zeros(H, np.float32),
    dt_bias=random(H, K),
    lower_bound=-5.0,
)
print("output", out.shape, "final state", final_state.shape)

cuda = flash_kda.info()["cuda"]
print("arrays of NumPy run on the CPU;", "a GPU is there too" if cuda["available"] else f"no GPU: {cuda['why']}")

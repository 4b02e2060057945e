"""A serving loop: the states of all requests live in one pool; prefill and decode read and write slots in place."""

import flash_kda
import numpy as np

SLOTS, H, K, BATCH = 8, 2, 128, 4  # BATCH: rows of a decode call, fixed as inside a CUDA graph
rng = np.random.default_rng(0)
pool = np.full((SLOTS, H, K, K), np.nan, np.float32)  # whatever earlier requests left there
gate = {"A_log": np.zeros(H, np.float32), "dt_bias": np.zeros((H, K), np.float32)}


def project(B, T):
    """Stands in for the layer's projections."""
    x = {name: rng.standard_normal((B, T, H, K), dtype=np.float32) for name in ("q", "k", "v", "g")}
    return x | {"beta": rng.standard_normal((B, T, H), dtype=np.float32)}


# Prefill three requests of different lengths, packed, into slots 5, 0 and 3. They are new: has_initial_state is False.
lengths, slots = [300, 1, 47], np.array([5, 0, 3], np.int32)
prompt = project(1, sum(lengths))
out, _ = flash_kda.forward(
    **prompt,
    **gate,
    cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
    initial_state=pool,
    final_state=pool,
    read_index=slots,
    write_index=slots,
    has_initial_state=np.zeros(3, bool),
)
assert np.isfinite(out).all() and np.isfinite(pool[slots]).all()

# Decode token by token. The batch is padded to BATCH rows: a negative index reads and writes nothing, its output is 0.
rows = np.append(slots, -1).astype(np.int32)
for _ in range(5):
    token = flash_kda.decode(**project(BATCH, 1), **gate, state=pool, read_index=rows)
    assert (token[3] == 0).all()

untouched = np.setdiff1d(np.arange(SLOTS), slots)
assert np.isnan(pool[untouched]).all()
print("prefilled", lengths, "tokens into slots", slots.tolist(), "and decoded 5 more for each")

"""A long prompt in pieces: the final state of one piece is the initial state of the next. Pieces of a multiple of 64
tokens give bit by bit what one call over everything gives."""

import flash_kda
import numpy as np

T, piece, H, K = 1000, 256, 2, 128
rng = np.random.default_rng(0)
x = {name: rng.standard_normal((1, T, H, K), dtype=np.float32) for name in ("q", "k", "v", "g")}
x["beta"] = rng.standard_normal((1, T, H), dtype=np.float32)

state, parts = None, []
for begin in range(0, T, piece):
    part = {name: array[:, begin : begin + piece] for name, array in x.items()}  # views: nothing is copied
    out, state = flash_kda.forward(**part, initial_state=state)
    parts.append(out)

whole, final_state = flash_kda.forward(**x)
np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
np.testing.assert_array_equal(state, final_state)
print(len(parts), "pieces of", piece, "tokens give what one call gives")

// Tensor maps: what the copy engine knows of a token tensor in global memory.
#pragma once

#include <cuda.h>

#include "api/params.h"

namespace flash_kda::cuda {

/// Map of x [B, T, heads, 128] for boxes of [tokens, channels] of one head: dimensions (channel, head, token, batch
/// row). Tokens behind T read as zero. With `swizzled`, rows of 128 bytes in shared memory have their 16-byte pieces
/// permuted as wgmma.cuh says. Throws Error.
CUtensorMap token_map(const Params& params, const TokenTensor& x, int heads, int tokens, int channels, bool swizzled);

}  // namespace flash_kda::cuda

// The chunked form in fp32 on host memory, for every gate, type and head dimension up to kMaxHeadDim.
#pragma once

#include "api/params.h"
#include "api/plan.h"

namespace flash_kda::cpu {

/// Tokens of a chunk.
inline constexpr int kChunk = 16;

void run_chunked(const Params& params, const Plan& plan);

}  // namespace flash_kda::cpu

// One task of the chunked form, compiled once per instruction set.
#pragma once

#include <span>

#include "api/params.h"
#include "cpu/chunked/checkpoints.h"
#include "cpu/chunked/chunked.h"
#include "cpu/instruction_set.h"
#include "cpu/tasks.h"
#include "cpu/vector/token_rows.h"

namespace flash_kda::cpu {

/// Working memory of one thread.
struct alignas(64) ChunkedScratch {
  TokenRows rows;
  float bias[kRowStride];
  float total_decay[kRowStride];           ///< e = 2^G_C per channel
  float decayed[2 * kChunk][kRowStride];   ///< K~, then Q~
  float k_end[kChunk][kRowStride];         ///< K̄end
  float A[kChunk][kChunk];                 ///< A[j][i] = A_ij of the specification, beta_i included; j < i
  float P[kChunk][kChunk];                 ///< P[j][i] = P_ij, j <= i
  float state[kMaxHeadDim * kMaxHeadDim];  ///< S transposed in panels of columns of V: [V / panel][K][panel]
};

using ChunkedKernel = void (*)(const Params&, const Task&, std::span<const Checkpoint> checkpoints, ChunkedScratch&);

ChunkedKernel chunked_kernel(InstructionSet set);

}  // namespace flash_kda::cpu

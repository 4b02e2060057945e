// One task of the recurrence, compiled once per instruction set.
#pragma once

#include "api/params.h"
#include "cpu/instruction_set.h"
#include "cpu/tasks.h"
#include "cpu/vector/token_rows.h"

namespace flash_kda::cpu {

/// Most lanes of a vector of fp32.
inline constexpr size_t kMaxLanes = 16;

/// Working memory of one thread.
struct alignas(64) RecurrentScratch {
  TokenRows rows;
  float bias[kRowStride];
  float state[kMaxLanes][kRowStride];      ///< as many rows of S as a vector has lanes
  float predicted[kMaxLanes * kMaxLanes];  ///< lane-wise partial sums of S k̄, row by row
  float attended[kMaxLanes * kMaxLanes];   ///< the same of S q̄
  float u[kMaxLanes];
};

using RecurrentKernel = void (*)(const Params&, const Task&, RecurrentScratch&);

RecurrentKernel recurrent_kernel(InstructionSet set);

}  // namespace flash_kda::cpu

// Scratch for a few tokens of one head in fp32.
#pragma once

#include <cstddef>

#include "api/params.h"

namespace flash_kda::cpu {

/// Most tokens held at once.
inline constexpr size_t kMaxTokenRows = 16;
/// Floats from one row to the next: a constant, so that kernels address rows by displacement; no multiple of a page or
/// of a cache set's stride, so that 16 rows do not fall on the same sets.
inline constexpr size_t kRowStride = kMaxHeadDim + 16;

struct alignas(64) TokenRows {
  float q[kMaxTokenRows][kRowStride];      ///< scale * q / |q|
  float k[kMaxTokenRows][kRowStride];      ///< k / |k|
  float decay[kMaxTokenRows][kRowStride];  ///< raw gate, then 2^gate
  float v[kMaxTokenRows][kRowStride];
  float beta[kMaxTokenRows];
};

}  // namespace flash_kda::cpu

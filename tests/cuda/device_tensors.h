// Tensors that live on the GPU only, for shapes that would take too long to make and compare on the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "flash_kda/flash_kda.h"

namespace flash_kda::test {

/// Every element of `x` (F32 or BF16) <- mean + deviation * z, z standard normal and a function of the seed and the
/// element's coordinates alone.
void fill_normal(const flash_kda_tensor& x, uint64_t seed, float mean, float deviation);

/// Relative Frobenius error of `actual` against `expected` (F32 or BF16 each), rounding to the stored type included.
struct DeviceDifference {
  int64_t not_finite = 0;  ///< elements where either side is NaN or infinite
  double relative = 0;
  double worst_head = 0;
};
DeviceDifference compare_on_device(const flash_kda_tensor& actual, const flash_kda_tensor& expected,
                                   int head_dimension);

/// A kernel on `stream` that lets its programmatic dependents start at once, waits for `milliseconds`, and then copies.
void copy_late(void* target, const void* source, size_t bytes, int milliseconds, cudaStream_t stream);

}  // namespace flash_kda::test

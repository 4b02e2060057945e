// Host side of the fused path.
#pragma once

#include <cuda.h>

#include "api/params.h"
#include "api/plan.h"

namespace flash_kda::cuda::fused {

/// Tensor maps of boxes of [32 tokens, 64 channels] of one head, swizzled.
struct InputMaps {
  CUtensorMap q, k, g, v;
};

/// Enqueue the kernel on params.stream; the right device is current. Throws Error.
void launch(const Params& params, const Plan& plan);

/// `helpers` CTAs besides those that walk the tasks.
void launch_forward(const Params& params, int64_t tasks, int helpers, const InputMaps& maps);

}  // namespace flash_kda::cuda::fused

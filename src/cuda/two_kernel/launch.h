// Host side of the two-kernel path.
#pragma once

#include <cuda.h>

#include "api/params.h"
#include "api/plan.h"

namespace flash_kda::cuda::two_kernel {

/// Tensor maps of the tiles [16 tokens, 128 channels] of one head: dimensions (channel, head, token, batch row).
struct InputMaps {
  CUtensorMap q, k, g;
};

/// Enqueue prepare and recurrence on params.stream; the right device is current. Throws Error.
void launch(const Params& params, const Plan& plan);

InputMaps input_maps(const Params& params);

/// The two halves, each in a file of its own so that they compile side by side; the tests look at the workspace between
/// them.
void launch_prepare(const Params& params, const InputMaps& maps);
void launch_recurrence(const Params& params, const Plan& plan);

}  // namespace flash_kda::cuda::two_kernel

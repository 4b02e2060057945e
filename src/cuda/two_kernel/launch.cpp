#include "cuda/two_kernel/launch.h"

#include "cuda/common/tensor_map.h"
#include "cuda/two_kernel/config.h"

namespace flash_kda::cuda::two_kernel {
InputMaps input_maps(const Params& params) {
  const auto map = [&](const TokenTensor& x, int heads) { return token_map(params, x, heads, kTile, kHeadDim, false); };
  return {map(params.q, params.H), map(params.k, params.H), map(params.g, params.HV)};
}

void launch(const Params& params, const Plan& plan) {
  if (plan.chunk_bound > 0) launch_prepare(params, input_maps(params));
  if (plan.tasks > 0) launch_recurrence(params, plan);
}

}  // namespace flash_kda::cuda::two_kernel

#include "cuda/fused/launch.h"

#include "cuda/common/tensor_map.h"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

void launch(const Params& params, const Plan& plan) {
  if (plan.tasks == 0) return;
  InputMaps maps = {};
  if (params.T > 0) {  // else nothing is loaded, and a map of nothing is refused
    const auto map = [&](const TokenTensor& x, int heads) { return token_map(params, x, heads, kChunk, kHalf, true); };
    maps = {map(params.q, params.H), map(params.k, params.H), map(params.g, params.HV), map(params.v, params.HV)};
  }
  launch_forward(params, plan, maps);
}

}  // namespace flash_kda::cuda::fused

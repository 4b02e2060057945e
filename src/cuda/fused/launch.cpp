#include "cuda/fused/launch.h"

#include <algorithm>

#include "cuda/common/tensor_map.h"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {
namespace {

/// As many of the plan's helpers as the workspace has place for.
int helpers_of(const Params& p, const Plan& plan) {
  if (p.workspace == nullptr) return 0;
  const int64_t place = static_cast<int64_t>(p.workspace_size) - package_offset(plan.tasks, 0);
  return static_cast<int>(std::clamp<int64_t>(place / (int64_t{kPackages} * kPackageBytes), 0, plan.helpers));
}

}  // namespace

void launch(const Params& params, const Plan& plan) {
  if (plan.tasks == 0) return;
  InputMaps maps = {};
  if (params.T > 0) {  // else nothing is loaded, and a map of nothing is refused
    const auto map = [&](const TokenTensor& x, int heads) { return token_map(params, x, heads, kChunk, kHalf, true); };
    maps = {map(params.q, params.H), map(params.k, params.H), map(params.g, params.HV), map(params.v, params.HV)};
  }
  launch_forward(params, plan.tasks, helpers_of(params, plan), maps);
}

}  // namespace flash_kda::cuda::fused

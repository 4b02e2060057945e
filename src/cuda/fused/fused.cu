// One kernel for a whole call on sm_90a: a CTA walks one sequence of one value head, reads q, k, v, g and beta once,
// writes out once, and keeps the state in registers. Warpgroups own 64 rows (V) of the state each (state.cuh); others
// scale the chunks ahead of it (scale.cuh); the last ones make the triangular matrices (finish.cuh) and move data
// (move.cuh). Where there are at least twice as many multiprocessors as tasks, a cluster of two CTAs shares one: each
// has half of the state, and scales half of the channels for both. The warps meet at the barriers of Shared.
// docs/fused.md has the picture.
#include "cuda/common/kernel_attributes.h"
#include "cuda/common/launch_kernel.h"
#include "cuda/fused/cta.cuh"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {
namespace {

template <int kStateGroups>
__global__ void __cluster_dims__(Roles{kStateGroups}.ctas(), 1, 1) __launch_bounds__(Roles{kStateGroups}.threads(), 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps) {
  extern __shared__ __align__(1024) unsigned char storage[];
  run_cta<kStateGroups>(p, maps, *reinterpret_cast<Shared*>(storage));
}

template <int kStateGroups>
void launch_for(const Params& params, const Plan& plan, const InputMaps& maps) {
  constexpr int kBytes = sizeof(Shared);
  allow_shared_memory<forward<kStateGroups>>(params.device, kBytes);
  launch_kernel("launch of fused::forward", forward<kStateGroups>, plan.tasks, plan.threads, kBytes, params.stream,
                params, maps);
}

}  // namespace

void launch_forward(const Params& params, const Plan& plan, const InputMaps& maps) {
  if (plan.value_split == 2)
    launch_for<1>(params, plan, maps);
  else
    launch_for<2>(params, plan, maps);
}

}  // namespace flash_kda::cuda::fused

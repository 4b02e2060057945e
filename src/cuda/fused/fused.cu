// One kernel for a whole call on sm_90a: a CTA walks one sequence of one value head, reads q, k, v, g and beta once,
// writes out once, and keeps the state in registers. Warpgroups own 64 rows (V) of the state each (state.cuh); others
// scale the chunks ahead of it (scale.cuh); the last one makes the triangular matrices (finish.cuh) and moves data
// (move.cuh). Where there are fewer tasks than multiprocessors, further CTAs prepare chunks for those that walk
// (help.cuh). The warps of a CTA meet at the barriers of Shared. docs/fused.md has the picture.
#include "cuda/common/kernel_attributes.h"
#include "cuda/common/launch_kernel.h"
#include "cuda/fused/cta.cuh"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {
namespace {

template <bool kHelped>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps, int helpers) {
  extern __shared__ __align__(1024) unsigned char storage[];
  run_cta<kHelped>(p, maps, helpers, blockIdx.x, *reinterpret_cast<Shared*>(storage));
}

template <bool kHelped>
void launch_forward_as(const Params& params, int64_t tasks, int helpers, const InputMaps& maps) {
  constexpr int kBytes = sizeof(Shared);
  allow_shared_memory<forward<kHelped>>(params.device, kBytes);
  launch_kernel("launch of fused::forward", forward<kHelped>, tasks + helpers, kThreads, kBytes, params.stream, params,
                maps, helpers);
}

}  // namespace

void launch_forward(const Params& params, int64_t tasks, int helpers, const InputMaps& maps) {
  if (helpers == 0) return launch_forward_as<false>(params, tasks, helpers, maps);
  check(cudaMemsetAsync(params.workspace, 0, static_cast<size_t>(package_offset(tasks, 0)),
                        static_cast<cudaStream_t>(params.stream)),
        "cudaMemsetAsync");
  launch_forward_as<true>(params, tasks, helpers, maps);
}

}  // namespace flash_kda::cuda::fused

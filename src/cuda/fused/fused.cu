// One kernel for a whole call on sm_90a: a CTA walks one sequence of one value head, reads q, k, v, g and beta once,
// writes out once, and keeps the state in registers. Two warpgroups own the state (state.cuh), the warps of two more
// prepare chunks ahead of it (prepare.cuh). They meet at the barriers of Shared. docs/fused.md has the picture.
#include "cuda/common/check.h"
#include "cuda/common/kernel_attributes.h"
#include "cuda/common/longest_first.cuh"
#include "cuda/fused/launch.h"
#include "cuda/fused/prepare.cuh"
#include "cuda/fused/state.cuh"

namespace flash_kda::cuda::fused {
namespace {

__global__ void __launch_bounds__(kThreads, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps) {
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& shared = *reinterpret_cast<Shared*>(storage);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kWarpgroup;

  Task task;
  task.head = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.HV));
  task.query_head = task.head / (p.HV / p.H);
  const int64_t n = sequence_of_rank(p, blockIdx.x / static_cast<unsigned>(p.HV));
  task.sequence = sequence_of(p, n);
  task.slots = slots_of(p, n);
  task.chunks = static_cast<int>((task.sequence.length + kChunk - 1) / kChunk);

  auto* const out = static_cast<__nv_bfloat16*>(p.out.data) +
                    token_offset(p.out, task.sequence.batch, task.sequence.begin, task.head);
  if (task.slots.padded) {
    for (int64_t i = thread; i < task.sequence.length * kHeadDim; i += kThreads)
      out[i / kHeadDim * p.out.stride_token + i % kHeadDim] = __float2bfloat16_rn(0.0f);
    return;
  }

  if (thread == 0) {
    shared.task = task;
    shared.next_slice = 0;
    shared.out = out;
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.loaded[i], 1);
      ptx::mbarrier_init(&shared.scaled[i], kSlices);
      ptx::mbarrier_init(&shared.ready[i], 1);
      ptx::mbarrier_init(&shared.empty[i], kStateGroups * kWarpgroup / 32);
    }
    for (int i = 0; i < kOperands; ++i) ptx::mbarrier_init(&shared.consumed[i], 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  if (thread < kHeadDim)
    shared.dt_bias[thread] = p.dt_bias == nullptr ? 0.0f : p.dt_bias[task.head * kHeadDim + thread];
  // The blocks of T and P above the diagonal are never written again.
  for (int i = thread; i < kStages * kHalfBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(shared.stage[i / (kHalfBytes / 16)].square)[i % (kHalfBytes / 16)] = {};
  __syncthreads();

  const int warp = thread % kWarpgroup / 32, lane = thread % 32;
  if (warpgroup < kStateGroups) {
    take_registers<kStateRegisters>();
    walk_sequence(p, maps, shared.task, shared, warpgroup, warp, lane);
  } else {
    give_registers<kPrepareRegisters>();
    // Warps w and w + 4 share a scheduler: the finishing warps are on two of them.
    const int group = warpgroup - kStateGroups;
    if (warp == 3 - group)
      finish_chunks(p, shared.task, shared, group, lane);
    else
      scale_slices(p, shared.task, shared, lane);
  }
}

}  // namespace

void launch_forward(const Params& params, const Plan& plan, const InputMaps& maps) {
  constexpr int kBytes = sizeof(Shared);
  allow_shared_memory<forward>(params.device, kBytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.tasks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = static_cast<cudaStream_t>(params.stream);
  check(cudaLaunchKernelEx(&config, forward, params, maps), "launch of fused::forward");
}

}  // namespace flash_kda::cuda::fused

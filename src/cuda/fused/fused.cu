// One kernel for a whole call on sm_90a: a CTA walks one sequence of one value head, reads q, k, v, g and beta once,
// writes out once, and keeps the state in registers. Two warpgroups own the state (state.cuh), the warps of two more
// prepare chunks ahead of it (prepare.cuh). Where there are at least twice as many multiprocessors as tasks, two CTAs
// share one: each has half of the state in one warpgroup, prepares everything, and has three warpgroups for that. They
// meet at the barriers of Shared. docs/fused.md has the picture.
#include "cuda/common/check.h"
#include "cuda/common/kernel_attributes.h"
#include "cuda/common/longest_first.cuh"
#include "cuda/fused/launch.h"
#include "cuda/fused/prepare.cuh"
#include "cuda/fused/state.cuh"

namespace flash_kda::cuda::fused {
namespace {

template <int kStateGroups>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps) {
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& shared = *reinterpret_cast<Shared*>(storage);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kWarpgroup;

  constexpr int kSplit = 2 / kStateGroups;  // CTAs that share a task, each with its own part of V
  const int block = static_cast<int>(blockIdx.x) / kSplit;
  Task task;
  task.row0 = static_cast<int>(blockIdx.x) % kSplit * kHalf;
  task.head = block % p.HV;
  task.query_head = task.head / (p.HV / p.H);
  const int64_t n = sequence_of_rank(p, block / p.HV);
  task.sequence = sequence_of(p, n);
  task.slots = slots_of(p, n);
  task.chunks = static_cast<int>((task.sequence.length + kChunk - 1) / kChunk);

  auto* const out = static_cast<__nv_bfloat16*>(p.out.data) +
                    token_offset(p.out, task.sequence.batch, task.sequence.begin, task.head);
  if (task.slots.padded) {
    constexpr int kRows = kStateGroups * kHalf;
    for (int64_t i = thread; i < task.sequence.length * kRows; i += kThreads)
      out[i / kRows * p.out.stride_token + task.row0 + i % kRows] = __float2bfloat16_rn(0.0f);
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
    take_registers<Roles::state_registers()>();
    walk_sequence<kStateGroups>(p, maps, shared.task, shared, warpgroup, warp, lane);
  } else {
    give_registers<Roles{kStateGroups}.prepare_registers()>();
    // Warps w and w + 4 share a scheduler: the finishing warps are on two of them.
    const int group = warpgroup - kStateGroups;
    if (group < kFinishers && warp == 3 - group)
      finish_chunks(p, shared.task, shared, group, lane);
    else
      scale_slices(p, shared.task, shared, lane);
  }
}

}  // namespace

template <int kStateGroups>
static void launch_for(const Params& params, const Plan& plan, const InputMaps& maps) {
  constexpr int kBytes = sizeof(Shared);
  allow_shared_memory<forward<kStateGroups>>(params.device, kBytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.tasks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = static_cast<cudaStream_t>(params.stream);
  check(cudaLaunchKernelEx(&config, forward<kStateGroups>, params, maps), "launch of fused::forward");
}

void launch_forward(const Params& params, const Plan& plan, const InputMaps& maps) {
  if (plan.value_split == 2)
    launch_for<1>(params, plan, maps);
  else
    launch_for<2>(params, plan, maps);
}

}  // namespace flash_kda::cuda::fused

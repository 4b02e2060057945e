// One kernel for a whole call on sm_90a: a CTA walks one sequence of one value head, reads q, k, v, g and beta once,
// writes out once, and keeps the state in registers. Warpgroups own 64 rows (V) of the state each (state.cuh); others
// scale the chunks ahead of it (scale.cuh); the last one's warps make the triangular matrices (finish.cuh) and move
// data (move.cuh). Where there are at least twice as many multiprocessors as tasks, two CTAs share one: each has half
// of the state, and prepares everything. The warps meet at the barriers of Shared. docs/fused.md has the picture.
#include "cuda/common/kernel_attributes.h"
#include "cuda/common/launch_kernel.h"
#include "cuda/common/longest_first.cuh"
#include "cuda/fused/finish.cuh"
#include "cuda/fused/launch.h"
#include "cuda/fused/move.cuh"
#include "cuda/fused/scale.cuh"
#include "cuda/fused/state.cuh"

namespace flash_kda::cuda::fused {
namespace {

template <int kStateGroups>
__global__ void __launch_bounds__(Roles{kStateGroups}.threads(), 1)
    forward(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps) {
  constexpr Roles kRoles{kStateGroups};
  constexpr int kThreads = kRoles.threads();
  extern __shared__ __align__(1024) unsigned char storage[];
  auto& shared = *reinterpret_cast<Shared*>(storage);
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kWarpgroup;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.loaded[i], 1);
      ptx::mbarrier_init(&shared.scaled[i], kRoles.scaling_warps());
      ptx::mbarrier_init(&shared.inverted[i], 1);
      ptx::mbarrier_init(&shared.scored[i], 1);
      ptx::mbarrier_init(&shared.written[i], kStateGroups * kWarpgroup / 32);
    }
    for (int i = 0; i < kOperands; ++i) ptx::mbarrier_init(&shared.consumed[i], 2);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  // The blocks of T and P above the diagonal are never written again.
  for (int i = thread; i < kStages * kHalfBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(shared.stage[i / (kHalfBytes / 16)].square)[i % (kHalfBytes / 16)] = {};
  cudaGridDependencySynchronize();  // so far nothing of global memory was touched

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
  if (task.slots.padded) {
    constexpr int kRows = kStateGroups * kHalf;
    auto* const out = static_cast<__nv_bfloat16*>(p.out.data) +
                      token_offset(p.out, task.sequence.batch, task.sequence.begin, task.head) + task.row0;
    for (int64_t i = thread; i < task.sequence.length * kRows; i += kThreads)
      out[i / kRows * p.out.stride_token + i % kRows] = __float2bfloat16_rn(0.0f);
    return;
  }
  if (thread == 0) {
    shared.task = task;
    shared.gate.constants = gate_constants(p, task.head);
  }
  if (thread < kHeadDim)
    shared.gate.bias[thread] = p.dt_bias == nullptr ? 0.0f : p.dt_bias[task.head * kHeadDim + thread];
  __syncthreads();

  const int warp = thread / 32, lane = thread % 32, warp_of_group = warp % 4;
  if (warpgroup < kStateGroups) {
    take_registers<Roles::state_registers()>();
    walk_sequence(p, shared.task, shared, warpgroup, warp_of_group, lane);
  } else if (warpgroup < kStateGroups + kRoles.scale_groups()) {
    give_registers<Roles::scale_registers()>();
    scale_chunks<kStateGroups>(shared.task, shared);
  } else {
    give_registers<Roles::finish_registers()>();
    if (warp_of_group < kInverters)
      invert_chunks(p, shared.task, shared, warp_of_group, lane);
    else if (warp_of_group == kInverters)
      score_chunks(p, shared.task, shared, lane);
    else
      move_chunks<kStateGroups>(p, maps, shared.task, shared, lane);
  }
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

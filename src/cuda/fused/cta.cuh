// What a CTA of the fused kernel does. Apart from fused.cu so that tests can run it on emulated warps.
#pragma once

#include "cuda/common/cluster.cuh"
#include "cuda/common/longest_first.cuh"
#include "cuda/fused/finish.cuh"
#include "cuda/fused/launch.h"
#include "cuda/fused/move.cuh"
#include "cuda/fused/scale.cuh"
#include "cuda/fused/state.cuh"

namespace flash_kda::cuda::fused {

template <int kStateGroups>
__device__ __forceinline__ void run_cta(const Params& p, const InputMaps& maps, Shared& shared) {
  constexpr Roles kRoles{kStateGroups};
  constexpr int kThreads = kRoles.threads(), kCtas = kRoles.ctas();
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kWarpgroup;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.loaded[i], 2);
      ptx::mbarrier_init(&shared.half_scaled[i], kRoles.scaling_warps());
      ptx::mbarrier_init(&shared.scaled[i], kCtas == 2 ? 1 : kRoles.scaling_warps());
      ptx::mbarrier_init(&shared.diagonal_inverted[i], 2);
      ptx::mbarrier_init(&shared.inverted[i], 1);
      ptx::mbarrier_init(&shared.scored[i], 2);
      ptx::mbarrier_init(&shared.written[i], kCtas * kStateGroups * kWarpgroup / 32);
    }
    for (int i = 0; i < kOperands; ++i) ptx::mbarrier_init(&shared.consumed[i], kCtas * kWarpgroup / 32);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  // The blocks of T and P above the diagonal are never written again.
  for (int i = thread; i < kStages * kHalfBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(shared.stage[i / (kHalfBytes / 16)].square)[i % (kHalfBytes / 16)] = {};
  cudaGridDependencySynchronize();  // so far nothing of global memory was touched

  const int block = static_cast<int>(blockIdx.x) / kCtas;
  Task task;
  task.row0 = static_cast<int>(blockIdx.x) % kCtas * kHalf;
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
    shared.gate = gate_constants(p, task.head);
  }
  if constexpr (kCtas == 2)
    sync_cluster();  // neither writes to the other before its barriers stand
  else
    __syncthreads();

  const int lane = thread % 32, warp_of_group = thread / 32 % 4;
  if (warpgroup < kStateGroups) {
    take_registers<kRoles.state_registers()>();
    walk_sequence<kStateGroups>(p, shared.task, shared, warpgroup, warp_of_group, lane);
  } else if (warpgroup < kStateGroups + kRoles.scale_groups()) {
    give_registers<kRoles.scale_registers()>();
    scale_chunks<kStateGroups>(p, shared.task, shared);
  } else {
    give_registers<kRoles.finish_registers()>();
    finish_chunks<kStateGroups>(p, maps, shared.task, shared, warpgroup - kStateGroups - kRoles.scale_groups(),
                                warp_of_group, lane);
  }
  if constexpr (kCtas == 2) sync_cluster();  // neither leaves while the other may write to it
}

}  // namespace flash_kda::cuda::fused

// What a CTA of the fused kernel does. Apart from fused.cu so that tests can run it on emulated warps.
#pragma once

#include "cuda/common/longest_first.cuh"
#include "cuda/fused/finish.cuh"
#include "cuda/fused/help.cuh"
#include "cuda/fused/launch.h"
#include "cuda/fused/move.cuh"
#include "cuda/fused/scale.cuh"
#include "cuda/fused/state.cuh"
#include "cuda/fused/task.cuh"

namespace flash_kda::cuda::fused {

/// CTA `block` of a grid: one walks each task, and behind them, if kHelped, are `helpers` that help.
template <bool kHelped>
__device__ __forceinline__ void run_cta(const Params& p, const InputMaps& maps, int helpers, int64_t block,
                                        Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x), warpgroup = thread / kWarpgroup;
  const bool walks = !kHelped || block < p.N * p.HV;

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&shared.loaded[i], walks ? 2 : 1);
      ptx::mbarrier_init(&shared.scaled[i], kScalingWarps + (kHelped && walks ? 1 : 0));
      ptx::mbarrier_init(&shared.diagonal_inverted[i], 2);
      ptx::mbarrier_init(&shared.inverted[i], 1);
      ptx::mbarrier_init(&shared.scored[i], 2);
      ptx::mbarrier_init(&shared.written[i], walks ? kStateGroups * kWarpgroup / 32 : 1);
    }
    for (int i = 0; i < kOperands; ++i) ptx::mbarrier_init(&shared.consumed[i], kWarpgroup / 32);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  // The blocks of T and P above the diagonal are never written again.
  for (int i = thread; i < kStages * kHalfBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(shared.stage[i / (kHalfBytes / 16)].square)[i % (kHalfBytes / 16)] = {};
  fence_to_async_proxy();
  cudaGridDependencySynchronize();  // so far nothing of global memory was touched

  if (walks) {
    // With helpers all tasks run at once, in any order.
    const int64_t n = kHelped ? block / p.HV : sequence_of_rank(p, block / p.HV);
    const Task task = task_of(p, n, static_cast<int>(block % p.HV), kHelped);
    if (task.slots.padded) {
      auto* const out = static_cast<__nv_bfloat16*>(p.out.data) +
                        token_offset(p.out, task.sequence.batch, task.sequence.begin, task.head);
      for (int64_t i = thread; i < task.sequence.length * kHeadDim; i += kThreads)
        out[i / kHeadDim * p.out.stride_token + i % kHeadDim] = __float2bfloat16_rn(0.0f);
      return;
    }
    if (thread == 0) shared.task = task;
  }
  __syncthreads();

  const int lane = thread_of_cta() % 32, warp = thread_of_cta() / 32 % 4;
  constexpr Role kWalking = kHelped ? Role::kHelped : Role::kAlone;
  if (walks) {
    if (warpgroup < kStateGroups) {
      take_registers<kStateRegisters>();
      walk_sequence(p, shared.task, shared, warpgroup, warp, lane);
    } else if (warpgroup < kStateGroups + kScaleGroups) {
      give_registers<kScaleRegisters>();
      scale_chunks<kWalking>(p, shared);
    } else {
      give_registers<kFinishRegisters>();
      finish_chunks<kWalking>(p, maps, shared, 0, warp, lane);
    }
    return;
  }
  if constexpr (kHelped) {
    if (warpgroup == 0) {
      if (warp == 0)
        load_orders(p, maps, shared, static_cast<int>(block - p.N * p.HV), helpers, lane);
      else if (lane == 0)
        give_packages(p, shared, warp - 1);
    } else if (warpgroup == 1 || warpgroup == kStateGroups + kScaleGroups) {
      finish_chunks<Role::kHelping>(p, maps, shared, warpgroup == 1 ? 1 : 0, warp, lane);
    } else {
      scale_orders(p, shared);
    }
  }
}

}  // namespace flash_kda::cuda::fused

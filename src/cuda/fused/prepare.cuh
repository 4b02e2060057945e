// The preparing warps of the fused kernel. Scaling warps take slices of 16 channels in turn (scale.cuh), finishing
// warps take the triangular parts of chunks in turn (finish.cuh). Which warp takes a slice does not matter for the
// result.
#pragma once

#include "cuda/fused/finish.cuh"
#include "cuda/fused/scale.cuh"

namespace flash_kda::cuda::fused {

/// What depends on the lane alone is computed again after this: kept over a loop, it would fill the registers.
__device__ __forceinline__ int forget(int lane) {
  asm volatile("" : "+r"(lane));
  return lane & 31;
}

__device__ __forceinline__ void scale_slices(const Params& p, const Task& task, Shared& shared, int lane) {
  const GateConstants gate = gate_constants(p, task.head);
  RunningSum running_sum;
  running_sum_operands(running_sum, lane);
  const auto take = [&] { return lane == 0 ? fetch_increment(&shared.next_slice) : 0; };
  uint32_t next = take();
#pragma unroll 1
  while (true) {
    lane = forget(lane);
    const uint32_t item = __shfl_sync(0xffffffffu, next, 0);
    const int chunk = static_cast<int>(item / kSlices), slice = static_cast<int>(item % kSlices);
    if (chunk >= task.chunks) return;
    next = take();
    wait_barrier(&shared.loaded[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
    if (chunk >= kOperands)
      wait_barrier(&shared.consumed[chunk % kOperands], static_cast<uint32_t>(chunk / kOperands - 1) & 1);
    const int valid = task.valid_tokens(chunk);
    Stage& stage = shared.stage[chunk % kStages];
    Operands& operands = shared.operands[chunk % kOperands];
    if (valid < kChunk)
      scale_slice<true>(stage, operands, shared.dt_bias, slice, lane, valid, gate, running_sum);
    else
      scale_slice<false>(stage, operands, shared.dt_bias, slice, lane, valid, gate, running_sum);
    fence_to_async_proxy();
    __syncwarp();
    if (lane == 0)
      ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.scaled[chunk % kStages]);
  }
}

__device__ __forceinline__ void finish_chunks(const Params& p, const Task& task, Shared& shared, int finisher,
                                              int lane) {
#pragma unroll 1
  for (int chunk = finisher; chunk < task.chunks; chunk += kFinishers) {
    lane = forget(lane);
    finish_chunk(p, task, shared, chunk, lane);
  }
}

}  // namespace flash_kda::cuda::fused

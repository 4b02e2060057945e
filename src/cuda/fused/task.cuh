// From the arguments to what a CTA of the fused kernel works on.
#pragma once

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

__device__ __forceinline__ GateConstants gate_constants(const Params& p, int head) {
  const float inverse = 1.0f / (-p.lower_bound * kLog2E);
  return {gate_slope(p, head), inverse, log2f(inverse)};
}

/// Value head `head` of sequence n. helped: there is a board.
__device__ __forceinline__ Task task_of(const Params& p, int64_t n, int head, bool helped) {
  Task task;
  task.sequence = sequence_of(p, n);
  task.slots = slots_of(p, n);
  task.head = head;
  task.query_head = head / (p.HV / p.H);
  task.chunks = static_cast<int>((task.sequence.length + kChunk - 1) / kChunk);
  task.gate = gate_constants(p, head);
  task.board = helped ? static_cast<Board*>(p.workspace) + n * p.HV + head : nullptr;
  return task;
}

/// In a CTA that helps, what `stage` is for.
__device__ __forceinline__ Order& order_of(Stage& stage) { return *reinterpret_cast<Order*>(stage.v); }

}  // namespace flash_kda::cuda::fused

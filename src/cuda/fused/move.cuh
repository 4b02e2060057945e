// What moves data in the fused kernel: raw tiles into the stages through the copy engine, out from them to global
// memory. Two warps, each for the channels of one half.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Asks for one half of the channels of a chunk. Tokens behind the sequence are another one's: who reads the last chunk
/// masks them. Called by one thread.
template <int kStateGroups>
__device__ __forceinline__ void start_loads(const InputMaps& maps, const Task& task, Shared& shared, int chunk,
                                            int half) {
  Stage& stage = shared.stage[chunk % kStages];
  uint64_t* const loaded = &shared.loaded[chunk % kStages];
  const bool values = half < kStateGroups;
  const auto load = [&](unsigned char* tile, const CUtensorMap& map, int channel, int head) {
    const int32_t corner[4] = {channel, head, static_cast<int32_t>(task.sequence.begin) + chunk * kChunk,
                               static_cast<int32_t>(task.sequence.batch)};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &map, corner, loaded);
  };
  fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded,
                                 (values ? 4 : 3) * kHalfBytes);
  load(stage.g + half * kHalfBytes, maps.g, half * kHalf, task.head);
  load(stage.half[half].k, maps.k, half * kHalf, task.query_head);
  load(stage.half[half].q, maps.q, half * kHalf, task.query_head);
  if (values) load(stage.v + half * kHalfBytes, maps.v, task.row0 + half * kHalf, task.head);
}

/// One half of out of a chunk from its stage to global memory. Called by a warp.
__device__ __forceinline__ void store_out(const Params& p, const Task& task, const Stage& stage, int chunk, int half,
                                          int lane) {
  constexpr int kTokens = 4, kSteps = kChunk / kTokens;  // of 64 columns, a step
  const int token = lane / 8, column = lane % 8 * 8, valid = task.valid_tokens(chunk);
  auto* const target =
      static_cast<__nv_bfloat16*>(p.out.data) +
      token_offset(p.out, task.sequence.batch, task.sequence.begin + chunk * kChunk + token, task.head) + task.row0 +
      half * kHalf + column;
  uint4 piece[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    piece[i] = *reinterpret_cast<const uint4*>(&stage.v[half * kHalfBytes + tile_offset(token + kTokens * i, column)]);
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    if (token + kTokens * i < valid) *reinterpret_cast<uint4*>(target + kTokens * i * p.out.stride_token) = piece[i];
}

/// Half of the first kStages chunks. Called by a warp.
template <int kStateGroups>
__device__ __forceinline__ void move_first_chunks(const InputMaps& maps, const Task& task, Shared& shared, int half,
                                                  int lane) {
  if (lane == 0)
    for (int chunk = 0; chunk < kStages && chunk < task.chunks; ++chunk)
      start_loads<kStateGroups>(maps, task, shared, chunk, half);
}

/// Half of `chunk` out of its stage, and of the one that takes the stage next into it. Called by a warp.
template <int kStateGroups>
__device__ __forceinline__ void move_chunk(const Params& p, const InputMaps& maps, const Task& task, Shared& shared,
                                           int chunk, int half, int lane) {
  wait_barrier(&shared.written[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
  if (half < kStateGroups) store_out(p, task, shared.stage[chunk % kStages], chunk, half, lane);
  __syncwarp();
  if (lane == 0 && chunk + kStages < task.chunks) start_loads<kStateGroups>(maps, task, shared, chunk + kStages, half);
}

}  // namespace flash_kda::cuda::fused

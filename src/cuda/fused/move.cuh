// The moving warp of the fused kernel: raw tiles into the stages through the copy engine, out from them to global
// memory.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Loads of chunk `chunk`, asked for by one thread. Tokens behind the sequence are another one's: who reads the last
/// chunk masks them.
template <int kStateGroups>
struct ChunkLoad {
  const InputMaps& maps;
  const Task& task;
  Shared& shared;
  int chunk;

  __device__ __forceinline__ uint64_t* loaded() const { return &shared.loaded[chunk % kStages]; }
  __device__ __forceinline__ Stage& stage() const { return shared.stage[chunk % kStages]; }
  __device__ __forceinline__ void load(unsigned char* half, const CUtensorMap& map, int channel, int head) const {
    const int32_t corner[4] = {channel, head, static_cast<int32_t>(task.sequence.begin) + chunk * kChunk,
                               static_cast<int32_t>(task.sequence.batch)};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, half, &map, corner, loaded());
  }

  /// q, k and g, and how many bytes the chunk has.
  __device__ __forceinline__ void start() const {
    fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded(),
                                   3 * kTileBytes + kStateGroups * kHalfBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load(stage().g + half * kHalfBytes, maps.g, half * kHalf, task.head);
      load(stage().half[half].k, maps.k, half * kHalf, task.query_head);
      load(stage().half[half].q, maps.q, half * kHalf, task.query_head);
    }
  }

  /// v, where out of the chunk before may have stood.
  __device__ __forceinline__ void finish() const {
    fence_to_async_proxy();
#pragma unroll
    for (int half = 0; half < kStateGroups; ++half)
      load(stage().v + half * kHalfBytes, maps.v, task.row0 + half * kHalf, task.head);
  }
};

/// Out of a chunk from its stage to `out`, which is that of the task's first token and row. Called by a warp.
template <int kStateGroups>
__device__ __forceinline__ void store_out(const Params& p, const Task& task, const Stage& stage, __nv_bfloat16* out,
                                          int chunk, int lane) {
  constexpr int kTokens = 4, kSteps = kChunk / kTokens;  // of 64 columns, a step
  const int token = lane / 8, column = lane % 8 * 8, valid = task.valid_tokens(chunk);
  __nv_bfloat16* const target = out + (chunk * kChunk + token) * p.out.stride_token + column;
#pragma unroll
  for (int half = 0; half < kStateGroups; ++half) {
    uint4 piece[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      piece[i] =
          *reinterpret_cast<const uint4*>(&stage.v[half * kHalfBytes + tile_offset(token + kTokens * i, column)]);
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      if (token + kTokens * i < valid)
        *reinterpret_cast<uint4*>(target + kTokens * i * p.out.stride_token + half * kHalf) = piece[i];
  }
}

/// The moving warp. A chunk takes the stage of the one kStages before it.
template <int kStateGroups>
__device__ __forceinline__ void move_chunks(const Params& p, const InputMaps& maps, const Task& task, Shared& shared,
                                            int lane) {
  using Load = ChunkLoad<kStateGroups>;
  if (lane == 0)
    for (int chunk = 0; chunk < kStages && chunk < task.chunks; ++chunk) {
      const Load load{maps, task, shared, chunk};
      load.start();
      load.finish();
    }
  auto* const out = static_cast<__nv_bfloat16*>(p.out.data) +
                    token_offset(p.out, task.sequence.batch, task.sequence.begin, task.head) + task.row0;
#pragma unroll 1
  for (int chunk = 0; chunk < task.chunks; ++chunk) {
    lane = forget(lane) & 31;
    wait_barrier(&shared.written[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
    const Load load{maps, task, shared, chunk + kStages};
    const bool loads = lane == 0 && chunk + kStages < task.chunks;
    if (loads) load.start();
    __syncwarp();
    store_out<kStateGroups>(p, task, shared.stage[chunk % kStages], out, chunk, lane);
    __syncwarp();
    if (loads) load.finish();
  }
}

}  // namespace flash_kda::cuda::fused

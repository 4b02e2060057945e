// What moves data in the fused kernel: raw tiles into the stages through the copy engine, out from them to global
// memory. By two warps: each for the channels of one half, or, where V is split, one for the CTA's half of q, k and g,
// the other for v and out.
#pragma once

#include "cuda/common/cluster.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Asks for the part of moving warp `warp` (0 or 1) of a chunk. Tokens behind the sequence are another one's: who reads
/// the last chunk masks them. Called by one thread.
template <int kStateGroups>
__device__ __forceinline__ void start_loads(const InputMaps& maps, const Task& task, Shared& shared, int chunk,
                                            int warp) {
  constexpr bool kSplit = Roles{kStateGroups}.ctas() == 2;
  Stage& stage = shared.stage[chunk % kStages];
  uint64_t* const loaded = &shared.loaded[chunk % kStages];
  const bool keys = !kSplit || warp == 0, values = !kSplit || warp == 1;
  const int half = kSplit ? task.rank() : warp, value_half = kSplit ? 0 : warp;
  // Read once: a load could change memory, for all that the compiler knows.
  const int head = task.head, query_head = task.query_head, row0 = task.row0;
  const int token = static_cast<int>(task.sequence.begin) + chunk * kChunk;
  const int batch = static_cast<int>(task.sequence.batch);
  const auto load = [&](unsigned char* tile, const CUtensorMap& map, int channel, int of_head) {
    const int32_t corner[4] = {channel, of_head, token, batch};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &map, corner, loaded);
  };
  fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded,
                                 ((keys ? 3 : 0) + (values ? 1 : 0)) * kHalfBytes);
  if (keys) {
    load(stage.g + half * kHalfBytes, maps.g, half * kHalf, head);
    load(stage.half[half].k, maps.k, half * kHalf, query_head);
    load(stage.half[half].q, maps.q, half * kHalf, query_head);
  }
  if (values) load(stage.v + value_half * kHalfBytes, maps.v, row0 + value_half * kHalf, head);
}

/// One half of out of a chunk from its stage to global memory: `target` is where the piece of this lane's first token
/// goes, that of token lane / 8 and columns 8 * (lane % 8) ..., and then every fourth token. Called by a warp.
__device__ __forceinline__ void store_out(const Stage& stage, __nv_bfloat16* target, int64_t stride_token, int half,
                                          int lane, int valid) {
  constexpr int kTokens = 4, kSteps = kChunk / kTokens;
  const int token = lane / 8, column = lane % 8 * 8;
  uint4 piece[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i)
    piece[i] = *reinterpret_cast<const uint4*>(&stage.v[half * kHalfBytes + tile_offset(token + kTokens * i, column)]);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (token + kTokens * i < valid) *reinterpret_cast<uint4*>(target) = piece[i];
    target += kTokens * stride_token;
  }
}

/// Offset of what store_out() of moving warp `warp` writes first of the first chunk, in elements of out.
template <int kStateGroups>
__device__ __forceinline__ int64_t offset_of_out(const Params& p, const Task& task, int warp, int lane) {
  const int half = Roles{kStateGroups}.ctas() == 2 ? 0 : warp;
  return token_offset(p.out, task.sequence.batch, task.sequence.begin + lane / 8, task.head) + task.row0 +
         half * kHalf + lane % 8 * 8;
}

/// A moving warp's part of the first kStages chunks.
template <int kStateGroups>
__device__ __forceinline__ void move_first_chunks(const InputMaps& maps, const Task& task, Shared& shared, int warp,
                                                  int lane) {
  if (lane == 0)
    for (int chunk = 0; chunk < kStages && chunk < task.chunks; ++chunk)
      start_loads<kStateGroups>(maps, task, shared, chunk, warp);
}

/// A moving warp's part of `chunk` out of its stage to `offset` in out, and of the chunk that takes the stage next into
/// it.
template <int kStateGroups>
__device__ __forceinline__ void move_chunk(const Params& p, const InputMaps& maps, const Task& task, Shared& shared,
                                           int64_t offset, int chunk, int warp, int lane) {
  constexpr bool kSplit = Roles{kStateGroups}.ctas() == 2;
  // Where V is split, the other CTA has then got this one's half, and no longer needs it.
  wait_barrier(&shared.written[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
  if (!kSplit || warp == 1)
    store_out(shared.stage[chunk % kStages], static_cast<__nv_bfloat16*>(p.out.data) + offset, p.out.stride_token,
              kSplit ? 0 : warp, lane, task.valid_tokens(chunk));
  __syncwarp();
  if (lane == 0 && chunk + kStages < task.chunks) start_loads<kStateGroups>(maps, task, shared, chunk + kStages, warp);
}

}  // namespace flash_kda::cuda::fused

// What moves data in a CTA that walks: raw tiles, or packages of helping CTAs, into the stages through the copy engine,
// and out from them to global memory. Two warps, one for each half of the channels; where there is help the second one
// alone is for keys, queries and gates.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Where a chunk lies in the inputs. Read from the task once: a load could change it, for all that the compiler knows.
struct Corner {
  int head, query_head, token, batch;

  __device__ __forceinline__ Corner(const Task& task, int chunk)
      : head(task.head),
        query_head(task.query_head),
        token(static_cast<int>(task.sequence.begin) + chunk * kChunk),
        batch(static_cast<int>(task.sequence.batch)) {}
};

/// Asks for [32 tokens, 64 channels] of a tensor of `head` into `tile`. Tokens behind the sequence are another one's:
/// who reads the last chunk masks them. Called by one thread.
__device__ __forceinline__ void load_tile(unsigned char* tile, const CUtensorMap& map, const Corner& corner, int head,
                                          int half, uint64_t* loaded) {
  const int32_t at[4] = {half * kHalf, head, corner.token, corner.batch};
  ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &map, at, loaded);
}

/// Asks for one half of q, k and g of a chunk. Called by one thread.
__device__ __forceinline__ void load_keys(const InputMaps& maps, const Corner& corner, Stage& stage, int half,
                                          uint64_t* loaded) {
  load_tile(stage.g + half * kHalfBytes, maps.g, corner, corner.head, half, loaded);
  load_tile(stage.half[half].k, maps.k, corner, corner.query_head, half, loaded);
  load_tile(stage.half[half].q, maps.q, corner, corner.query_head, half, loaded);
}
inline constexpr int kHalfKeysBytes = 3 * kHalfBytes;

/// What a moving warp keeps from chunk to chunk.
struct Moving {
  int64_t out_position;  ///< offset in out of what store_out() writes first of the next chunk
  // Where there is help, of the second warp's lane 0:
  uint64_t given;  ///< the board's entry for the chunk that is asked for next, as it stood a chunk ago
  int turn;        ///< of the next chunk that the CTA prepares itself
};

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

/// A moving warp's part of `chunk` into its stage, which is free. Called by one thread.
template <Role kRole>
__device__ __forceinline__ void refill(const Params& p, const InputMaps& maps, Shared& shared, Moving& moving,
                                       int chunk, int half) {
  constexpr bool kHelped = kRole == Role::kHelped;
  const int place = chunk % kStages;
  const Corner corner(shared.task, chunk);
  Stage& stage = shared.stage[place];
  uint64_t *const loaded = &shared.loaded[place], *const scaled = &shared.scaled[place];
  fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
  bool keys = true;
  if constexpr (kHelped) {
    keys = false;
    if (half == 1) {
      Board& board = *shared.task.board;
      // Relaxed, like the load of the entry: what comes before has been read by copies that are complete.
      store_relaxed(&board.asked, static_cast<uint32_t>(chunk) + 1);
      keys = static_cast<uint32_t>(moving.given) != static_cast<uint32_t>(chunk) + 1;
      shared.turn[place] = keys ? moving.turn++ : -1;
      if (keys) {
        ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, scaled);
      } else {
        // The package was complete in memory before its entry was written, and the copy starts when that has been read.
        fence_global_to_async_proxy();
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, scaled, kPackageBytes);
        bulk_load(&stage,
                  static_cast<const unsigned char*>(p.workspace) +
                      package_offset(p.N * p.HV, static_cast<int64_t>(moving.given >> 32)),
                  kPackageBytes, scaled);
        // Of this warp's part in finishing the chunk nothing is left.
        ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.scored[place]);
      }
      if (chunk + 1 >= kLead) moving.given = load_relaxed(&board.given[(chunk + 1) % kEntries]);
    }
  }
  constexpr int kKeysBytes = (kHelped ? 2 : 1) * kHalfKeysBytes;
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded,
                                 kHalfBytes + (keys ? kKeysBytes : 0));
  if (keys) {
    if (kHelped) load_keys(maps, corner, stage, 0, loaded);
    load_keys(maps, corner, stage, half, loaded);
  }
  load_tile(stage.v + half * kHalfBytes, maps.v, corner, corner.head, half, loaded);
}

/// A moving warp's part of the first kStages chunks.
template <Role kRole>
__device__ __forceinline__ void move_first_chunks(const Params& p, const InputMaps& maps, Shared& shared,
                                                  Moving& moving, int half, int lane) {
  const Task& task = shared.task;
  moving = {
      token_offset(p.out, task.sequence.batch, task.sequence.begin + lane / 8, task.head) + half * kHalf + lane % 8 * 8,
      0, 0};
  if (lane == 0)
    for (int chunk = 0; chunk < kStages && chunk < task.chunks; ++chunk)
      refill<kRole>(p, maps, shared, moving, chunk, half);
}

/// A moving warp's part of `chunk` out of its stage, and of the chunk that takes the stage next into it.
template <Role kRole>
__device__ __forceinline__ void move_chunk(const Params& p, const InputMaps& maps, Shared& shared, Moving& moving,
                                           int chunk, int half, int lane) {
  wait_barrier(&shared.written[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
  store_out(shared.stage[chunk % kStages], static_cast<__nv_bfloat16*>(p.out.data) + moving.out_position,
            p.out.stride_token, half, lane, shared.task.valid_tokens(chunk));
  moving.out_position += kChunk * p.out.stride_token;
  __syncwarp();
  if (lane == 0 && chunk + kStages < shared.task.chunks) refill<kRole>(p, maps, shared, moving, chunk + kStages, half);
}

}  // namespace flash_kda::cuda::fused

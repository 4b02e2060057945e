// Loads of the fused kernel: one thread asks the copy engine for the raw tiles of a chunk.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Load chunk `chunk` into its stage, which nobody uses any more; one thread. Tokens behind the sequence are another
/// one's: who reads the last chunk masks them.
template <int kStateGroups>
__device__ __forceinline__ void load_chunk(const InputMaps& maps, const Task& task, Shared& shared, int chunk) {
  Stage& stage = shared.stage[chunk % kStages];
  uint64_t* const loaded = &shared.loaded[chunk % kStages];
  fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded,
                                 3 * kTileBytes + kStateGroups * kHalfBytes);
  const auto load = [&](unsigned char* half, const CUtensorMap& map, int channel, int head) {
    const int32_t corner[4] = {channel, head, static_cast<int32_t>(task.sequence.begin) + chunk * kChunk,
                               static_cast<int32_t>(task.sequence.batch)};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, half, &map, corner, loaded);
  };
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    load(stage.g + half * kHalfBytes, maps.g, half * kHalf, task.head);
    load(stage.k + half * kHalfBytes, maps.k, half * kHalf, task.query_head);
    load(stage.q + half * kHalfBytes, maps.q, half * kHalf, task.query_head);
  }
#pragma unroll
  for (int half = 0; half < kStateGroups; ++half)
    load(stage.v + half * kHalfBytes, maps.v, task.row0 + half * kHalf, task.head);
}

}  // namespace flash_kda::cuda::fused

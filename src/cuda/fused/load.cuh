// Loads of the fused kernel: one thread asks the copy engine for the raw tiles of a chunk.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"

namespace flash_kda::cuda::fused {

/// Load chunk `chunk` into its stage, which nobody uses any more; one thread. Tokens behind the sequence are another
/// one's: who reads the last chunk masks them.
__device__ __forceinline__ void load_chunk(const InputMaps& maps, const Task& task, Shared& shared, int chunk) {
  Stage& stage = shared.stage[chunk % kStages];
  uint64_t* const loaded = &shared.loaded[chunk % kStages];
  fence_to_async_proxy();  // after the ordinary accesses to the stage that the caller has waited for
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, loaded, 4 * kTileBytes);
  const auto load = [&](unsigned char* tile, const CUtensorMap& map, int head) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t corner[4] = {half * kHalf, head, static_cast<int32_t>(task.sequence.begin) + chunk * kChunk,
                                 static_cast<int32_t>(task.sequence.batch)};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile + half * kHalfBytes, &map, corner, loaded);
    }
  };
  load(stage.g, maps.g, task.head);
  load(stage.k, maps.k, task.query_head);
  load(stage.q, maps.q, task.query_head);
  load(stage.v, maps.v, task.head);
}

}  // namespace flash_kda::cuda::fused

// What moves data in a CTA that helps: a warp chooses chunks of the tasks it helps and loads them, threads give the
// packages that they become. Scaling and finishing between the two are those of a CTA that walks.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"
#include "cuda/fused/move.cuh"
#include "cuda/fused/task.cuh"

namespace flash_kda::cuda::fused {

/// All loads of helping CTA `helper` of `helpers`. Called by a warp: each lane has one class of the chunks of one task.
/// Since nobody waits for help it may end at any time, and does when it has waited for long: for a walking CTA that
/// has not started, for example, because the device is shared.
__device__ __forceinline__ void load_orders(const Params& p, const InputMaps& maps, Shared& shared, int helper,
                                            int helpers, int lane) {
  constexpr unsigned kAll = 0xffffffffu;
  constexpr int kPatience = 1000;  // about a millisecond
  const int64_t tasks = p.N * p.HV, index = helper + static_cast<int64_t>(lane) * helpers;
  const int kind = static_cast<int>(index % kClasses);
  Task task = {};
  if (index < tasks * kClasses)
    task = task_of(p, index / kClasses / p.HV, static_cast<int>(index / kClasses % p.HV), true);
  const int chunks = task.slots.padded ? 0 : task.chunks;

  int next = kind;                           // the chunk that this lane orders next
  int owner = 0, last_chunk = -kStages - 1;  // of package `lane`: the lane and chunk that it was for; vacant at first
  int step = 0, last_lane = 0;
  const auto wait_for_place = [&] {
    if (step >= kStages) wait_barrier(&shared.written[step % kStages], static_cast<uint32_t>(step / kStages - 1) & 1);
  };
  for (int waited = 0; waited < kPatience; ++waited) {
    wait_for_place();
    const int asked = chunks > 0 ? static_cast<int>(load_relaxed(&task.board->asked)) : 0;
    if (const int late = asked + kLead - next; late > 0) next += (late + kClasses - 1) / kClasses * kClasses;
    const unsigned hopeful = __ballot_sync(kAll, next < chunks);
    const unsigned ready = __ballot_sync(kAll, next < chunks && next < asked + kEntries);
    const int asked_of_owner = __shfl_sync(kAll, asked, owner);
    const unsigned vacant = __ballot_sync(kAll, lane < kPackages && asked_of_owner > last_chunk + kStages);
    if (hopeful == 0) break;
    if (ready == 0 || vacant == 0) {
      __nanosleep(200);
      continue;
    }
    const unsigned later = ready & ~((2u << last_lane) - 1);  // in turn
    last_lane = __ffs(static_cast<int>(later != 0 ? later : ready)) - 1;
    const int package = __ffs(static_cast<int>(vacant)) - 1;
    const int chunk = __shfl_sync(kAll, next, last_lane);
    if (lane == package) {
      owner = last_lane;
      last_chunk = chunk;
    }
    if (lane == last_lane) {
      const int place = step % kStages;
      Order& order = order_of(shared.stage[place]);
      order.task = task;
      order.chunk = chunk;
      order.package = helper * kPackages + package;
      fence_to_async_proxy();
      constexpr int kBiasBytes = sizeof(order.bias);
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.loaded[place],
                                     2 * kHalfKeysBytes + (p.dt_bias != nullptr ? kBiasBytes : 0));
      if (p.dt_bias != nullptr)
        bulk_load(order.bias, p.dt_bias + static_cast<int64_t>(task.head) * kHeadDim, kBiasBytes,
                  &shared.loaded[place]);
      for (int half = 0; half < 2; ++half)
        load_keys(maps, Corner(task, chunk), shared.stage[place], half, &shared.loaded[place]);
      next += kClasses;
    }
    ++step;
    waited = -1;
  }
  for (int i = 0; i < kGivingThreads; ++i, ++step) {  // all that take turns are to end
    wait_for_place();
    if (lane == 0) {
      order_of(shared.stage[step % kStages]).chunk = -1;
      ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.loaded[step % kStages]);
    }
  }
}

/// Packages to the workspace, and their entries on the boards. Called by kGivingThreads threads, which take turns, for
/// the fence of a release takes longer than a chunk.
__device__ __forceinline__ void give_packages(const Params& p, Shared& shared, int thread) {
#pragma unroll 1
  for (int step = thread;; step += kGivingThreads) {
    const int place = step % kStages;
    const auto parity = static_cast<uint32_t>(step / kStages) & 1;
    wait_barrier(&shared.scaled[place], parity);
    const int chunk = order_of(shared.stage[place]).chunk, package = order_of(shared.stage[place]).package;
    Board* const board = order_of(shared.stage[place]).task.board;
    if (chunk < 0) return;
    wait_barrier(&shared.scored[place], parity);
    wait_barrier(&shared.inverted[place], parity);
    fence_global_to_async_proxy();  // after the walking CTA's word that the package's place has been read
    bulk_store(static_cast<unsigned char*>(p.workspace) + package_offset(p.N * p.HV, package), &shared.stage[place],
               kPackageBytes);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.written[place]);
    ptx::cp_async_bulk_wait_group(ptx::n32_t<0>{});
    store_release(&board->given[chunk % kEntries],
                  static_cast<uint64_t>(package) << 32 | static_cast<uint32_t>(chunk + 1));
  }
}

}  // namespace flash_kda::cuda::fused

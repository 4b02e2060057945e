// The threads of a cluster of CTAs as fibers of one host thread: device code runs on them as it stands, over the
// emulated instructions in cuda/common/. A fiber runs until it waits; the order is always the same.
#pragma once

#include <cstdint>
#include <functional>

namespace flash_kda::test {

/// Runs `body` as `ctas` times `threads` fibers (`threads` a multiple of 32). False when those that are left all wait:
/// then they are abandoned.
bool run_cluster(int ctas, int threads, const std::function<void()>& body);

/// Index of the running fiber in its CTA, and the CTA's rank.
int thread_index();
int cta_rank();

/// Let others run until `condition` holds.
void wait_until(const std::function<bool()>& condition);

/// Wait for the other lanes of the warp, for all threads of the CTA, and for those of the cluster.
void sync_warp();
void sync_cta();
void sync_cluster();

/// What lane `lane` of this warp has put up for the others since the last sync_warp(): 16 words.
uint32_t* words_of_lane(int lane);

}  // namespace flash_kda::test

// The threads of CTAs that run side by side as fibers of one host thread: device code runs on them as it stands, over
// the emulated instructions in cuda/common/. A fiber runs until it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace flash_kda::test {

/// Runs `body` as `count` times `threads` fibers (`threads` a multiple of 32). False when those that are left all wait:
/// then they are abandoned. seed 0: warps take turns, and what is asynchronous is done when it is asked for. Otherwise
/// warps come in a random order, each at a speed that changes, and what is asynchronous is done as late as may be.
bool run_ctas(int count, int threads, uint64_t seed, const std::function<void()>& body);

/// Whether what is asynchronous is done late.
bool is_late();
/// A copy, of which `waited_for` (a barrier, a count) tells others: done now or, where what is asynchronous is late,
/// some time later between other fibers' steps, or not before somebody looks at `waited_for` and calls need().
void do_asynchronously(const void* waited_for, std::function<void()> operation);
void need(const void* waited_for);

/// Index of the running fiber in its CTA, the CTA's, and that among the fibers of all CTAs.
int thread_index();
int cta_index();
size_t fiber_index();

/// Let others run until `condition` holds, or once.
void wait_until(const std::function<bool()>& condition);
void yield();

/// Wait for the other lanes of the warp, and for all threads of the CTA.
void sync_warp();
void sync_cta();

/// What lane `lane` of this warp has put up for the others since the last sync_warp(): 16 words.
uint32_t* words_of_lane(int lane);

}  // namespace flash_kda::test

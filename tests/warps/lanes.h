// The threads of CTAs that run side by side as fibers of one host thread: device code runs on them as it stands, over
// the emulated instructions in cuda/common/. A fiber runs until it waits; the order is always the same.
#pragma once

#include <cstdint>
#include <functional>

namespace flash_kda::test {

/// Runs `body` as `count` times `threads` fibers (`threads` a multiple of 32). False when those that are left all wait:
/// then they are abandoned.
bool run_ctas(int count, int threads, const std::function<void()>& body);

/// Index of the running fiber in its CTA, and the CTA's.
int thread_index();
int cta_index();

/// Let others run until `condition` holds, or once.
void wait_until(const std::function<bool()>& condition);
void yield();

/// Wait for the other lanes of the warp, and for all threads of the CTA.
void sync_warp();
void sync_cta();

/// What lane `lane` of this warp has put up for the others since the last sync_warp(): 16 words.
uint32_t* words_of_lane(int lane);

}  // namespace flash_kda::test

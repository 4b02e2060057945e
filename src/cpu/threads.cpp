#include "cpu/threads.h"

#include <pthread.h>

#include <atomic>

namespace flash_kda::cpu {
namespace {

std::atomic<bool> pool_in_use{false};       // by this process
std::atomic<bool> pool_left_behind{false};  // by the process that this one was forked from

}  // namespace

void expect_pool() {
  if (pool_in_use.exchange(true)) return;
  pthread_atfork(nullptr, nullptr, [] { pool_left_behind = true; });
}

bool pool_is_missing() { return pool_left_behind; }

}  // namespace flash_kda::cpu

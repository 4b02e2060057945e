#include "lanes.h"

#include <ucontext.h>

#include <array>
#include <memory>
#include <vector>

namespace flash_kda::test {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  const std::function<bool()>* condition = nullptr;  ///< what it waits for
  bool done = false;
};

struct Meeting {
  int arrived = 0;
  uint64_t count = 0;
};

struct Cluster {
  const std::function<void()>* body;
  size_t threads;  ///< of a CTA
  ucontext_t scheduler = {};
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<Meeting> ctas;
  Meeting all;
  std::vector<std::array<uint32_t, 16>> words;
  size_t running = 0;
};

Cluster* cluster = nullptr;

void run_fiber() {
  (*cluster->body)();
  cluster->fibers[cluster->running].done = true;
  swapcontext(&cluster->fibers[cluster->running].context, &cluster->scheduler);
}

void meet(Meeting& meeting, int threads) {
  const uint64_t before = meeting.count;
  if (++meeting.arrived == threads) {
    meeting.arrived = 0;
    ++meeting.count;
  }
  wait_until([&] { return meeting.count != before; });
}

}  // namespace

bool run_cluster(int ctas, int threads, const std::function<void()>& body) {
  Cluster current;
  cluster = &current;
  current.body = &body;
  current.threads = static_cast<size_t>(threads);
  current.ctas.resize(static_cast<size_t>(ctas));
  const size_t all_threads = current.ctas.size() * current.threads;
  current.fibers.resize(all_threads);
  current.warps.resize(all_threads / 32);
  current.words.resize(all_threads);
  for (Fiber& fiber : current.fibers) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (current.running = 0; current.running < current.fibers.size(); ++current.running) {
      Fiber& fiber = current.fibers[current.running];
      if (fiber.done || (fiber.condition != nullptr && !(*fiber.condition)())) continue;
      progress = true;
      swapcontext(&current.scheduler, &fiber.context);
    }
  }
  cluster = nullptr;
  for (const Fiber& fiber : current.fibers)
    if (!fiber.done) return false;
  return true;
}

int thread_index() { return static_cast<int>(cluster->running % cluster->threads); }
int cta_rank() { return static_cast<int>(cluster->running / cluster->threads); }

void wait_until(const std::function<bool()>& condition) {
  if (condition()) return;
  Fiber& fiber = cluster->fibers[cluster->running];
  fiber.condition = &condition;
  swapcontext(&fiber.context, &cluster->scheduler);
  fiber.condition = nullptr;
}

void sync_warp() { meet(cluster->warps[cluster->running / 32], 32); }
void sync_cta() { meet(cluster->ctas[static_cast<size_t>(cta_rank())], static_cast<int>(cluster->threads)); }
void sync_cluster() { meet(cluster->all, static_cast<int>(cluster->fibers.size())); }

uint32_t* words_of_lane(int lane) {
  return cluster->words[cluster->running / 32 * 32 + static_cast<size_t>(lane)].data();
}

}  // namespace flash_kda::test

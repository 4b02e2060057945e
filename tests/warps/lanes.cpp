#include "lanes.h"

#include <ucontext.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace flash_kda::test {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  const std::function<bool()>* condition = nullptr;  ///< what it waits for
  bool done = false;
};

struct Meeting {
  int arrived = 0;
  uint64_t count = 0;
};

struct Ctas {
  const std::function<void()>* body;
  size_t threads;  ///< of a CTA
  ucontext_t scheduler = {};
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<Meeting> ctas;
  std::vector<std::array<uint32_t, 16>> words;
  size_t running = 0;
};

Ctas* ctas = nullptr;

void run_fiber() {
  (*ctas->body)();
  ctas->fibers[ctas->running].done = true;
  swapcontext(&ctas->fibers[ctas->running].context, &ctas->scheduler);
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

bool run_ctas(int count, int threads, const std::function<void()>& body) {
  Ctas current;
  ctas = &current;
  current.body = &body;
  current.threads = static_cast<size_t>(threads);
  current.ctas.resize(static_cast<size_t>(count));
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
  ctas = nullptr;
  for (const Fiber& fiber : current.fibers)
    if (!fiber.done) return false;
  return true;
}

int thread_index() { return static_cast<int>(ctas->running % ctas->threads); }
int cta_index() { return static_cast<int>(ctas->running / ctas->threads); }

void wait_until(const std::function<bool()>& condition) {
  if (condition()) return;
  Fiber& fiber = ctas->fibers[ctas->running];
  fiber.condition = &condition;
  swapcontext(&fiber.context, &ctas->scheduler);
  fiber.condition = nullptr;
}

void yield() {
  bool others_ran = false;
  wait_until([&] { return std::exchange(others_ran, true); });
}

void sync_warp() { meet(ctas->warps[ctas->running / 32], 32); }
void sync_cta() { meet(ctas->ctas[static_cast<size_t>(cta_index())], static_cast<int>(ctas->threads)); }

uint32_t* words_of_lane(int lane) { return ctas->words[ctas->running / 32 * 32 + static_cast<size_t>(lane)].data(); }

}  // namespace flash_kda::test

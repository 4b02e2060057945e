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

struct Cta {
  const std::function<void()>* body;
  ucontext_t scheduler = {};
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting all;
  std::vector<std::array<uint32_t, 16>> words;
  size_t running = 0;
};

Cta* cta = nullptr;

void run_fiber() {
  (*cta->body)();
  cta->fibers[cta->running].done = true;
  swapcontext(&cta->fibers[cta->running].context, &cta->scheduler);
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

bool run_cta(int threads, const std::function<void()>& body) {
  Cta current;
  cta = &current;
  current.body = &body;
  current.fibers.resize(static_cast<size_t>(threads));
  current.warps.resize(static_cast<size_t>(threads / 32));
  current.words.resize(static_cast<size_t>(threads));
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
  cta = nullptr;
  for (const Fiber& fiber : current.fibers)
    if (!fiber.done) return false;
  return true;
}

int thread_index() { return static_cast<int>(cta->running); }

void wait_until(const std::function<bool()>& condition) {
  if (condition()) return;
  Fiber& fiber = cta->fibers[cta->running];
  fiber.condition = &condition;
  swapcontext(&fiber.context, &cta->scheduler);
  fiber.condition = nullptr;
}

void sync_warp() { meet(cta->warps[cta->running / 32], 32); }
void sync_cta() { meet(cta->all, static_cast<int>(cta->fibers.size())); }

uint32_t* words_of_lane(int lane) { return cta->words[cta->running / 32 * 32 + static_cast<size_t>(lane)].data(); }

}  // namespace flash_kda::test

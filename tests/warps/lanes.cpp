#include "lanes.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
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

/// An asynchronous operation that is not done yet.
struct AskedFor {
  std::function<void()> operation;
  const void* waited_for;
  int64_t pass;  ///< when it is done, or kWhenNeeded
};
constexpr int64_t kWhenNeeded = std::numeric_limits<int64_t>::max();

struct Ctas {
  const std::function<void()>* body;
  size_t threads;  ///< of a CTA
  ucontext_t scheduler = {};
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  std::vector<Meeting> ctas;
  std::vector<std::array<uint32_t, 16>> words;
  size_t running = 0;
  bool late = false;
  std::mt19937_64 random;
  int64_t pass = 0;  ///< over all warps
  std::vector<AskedFor> asked_for;
};

Ctas* ctas = nullptr;

void do_one(std::vector<AskedFor>::iterator one) {
  const std::function<void()> operation = std::move(one->operation);
  ctas->asked_for.erase(one);
  operation();
}

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

bool run_ctas(int count, int threads, uint64_t seed, const std::function<void()>& body) {
  Ctas current;
  ctas = &current;
  current.body = &body;
  current.threads = static_cast<size_t>(threads);
  current.late = seed != 0;
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

  bool progress = true;
  const auto run_warp = [&](size_t warp) {
    for (current.running = 32 * warp; current.running < 32 * (warp + 1); ++current.running) {
      Fiber& fiber = current.fibers[current.running];
      if (fiber.done || (fiber.condition != nullptr && !(*fiber.condition)())) continue;
      progress = true;
      swapcontext(&current.scheduler, &fiber.context);
    }
  };
  std::vector<size_t> order(current.warps.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (seed == 0) {
    while (std::exchange(progress, false))
      for (size_t warp : order) run_warp(warp);
  } else {
    std::mt19937_64& random = current.random;
    random.seed(seed);
    const auto do_next_until = [&](int64_t pass) {  // of those that are asked for, the one that comes first
      const auto next = std::ranges::min_element(current.asked_for, {}, &AskedFor::pass);
      if (next == current.asked_for.end() || next->pass > pass) return false;
      do_one(next);
      return progress = true;
    };
    std::vector<uint64_t> turns(order.size());  // of a warp, of 16 passes
    for (; std::exchange(progress, false); ++current.pass) {
      if (current.pass % 64 == 0)
        for (uint64_t& n : turns) n = uint64_t{1} << random() % 5;
      std::shuffle(order.begin(), order.end(), random);
      for (size_t warp : order)
        if (random() % 16 < turns[warp]) run_warp(warp);
      while (do_next_until(current.pass)) {
      }
      if (progress) continue;  // else see whether those whose turn it was not can go on
      for (size_t warp : order) run_warp(warp);
      if (!progress) do_next_until(kWhenNeeded);
    }
  }
  ctas = nullptr;
  return std::all_of(current.fibers.begin(), current.fibers.end(), [](const Fiber& fiber) { return fiber.done; });
}

bool is_late() { return ctas->late; }
void do_asynchronously(const void* waited_for, std::function<void()> operation) {
  if (!ctas->late) return operation();
  constexpr uint64_t kLatest = 12;  // log2 of passes
  const bool when_needed = ctas->random() % 2 == 0;
  ctas->asked_for.push_back({std::move(operation), waited_for,
                             when_needed ? kWhenNeeded : ctas->pass + (int64_t{1} << ctas->random() % kLatest)});
}
void need(const void* waited_for) {
  const auto needed = [&](const AskedFor& one) { return one.waited_for == waited_for && one.pass == kWhenNeeded; };
  for (auto one = ctas->asked_for.begin();
       (one = std::ranges::find_if(ctas->asked_for, needed)) != ctas->asked_for.end();)
    do_one(one);
}

int thread_index() { return static_cast<int>(ctas->running % ctas->threads); }
int cta_index() { return static_cast<int>(ctas->running / ctas->threads); }
size_t fiber_index() { return ctas->running; }

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

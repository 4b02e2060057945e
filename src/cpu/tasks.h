// The independent pieces of a call, and the loop that spreads them over threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "api/params.h"
#include "api/plan.h"
#include "common/sequence.h"
#include "cpu/plan.h"
#include "cpu/threads.h"

namespace flash_kda::cpu {

/// Value columns [begin, end) of one sequence and value head. Columns of V never meet in the recurrence.
struct Task {
  int64_t n = 0;
  int head = 0;
  int begin = 0;
  int end = 0;
  Sequence sequence;
  Slots slots;
};

/// Task `index` of sequence n: heads, each cut into plan.value_split pieces of whole blocks of kValueBlock columns.
inline Task task_of(const Params& p, const Plan& plan, int64_t n, int64_t index) {
  const int blocks = (p.V + kValueBlock - 1) / kValueBlock;
  const int part = static_cast<int>(index % plan.value_split);
  Task task;
  task.n = n;
  task.head = static_cast<int>(index / plan.value_split);
  task.begin = blocks * part / plan.value_split * kValueBlock;
  task.end = std::min(p.V, blocks * (part + 1) / plan.value_split * kValueBlock);
  task.sequence = sequence_of(p, n);
  task.slots = slots_of(p, n);
  return task;
}

/// body(task, scratch) for every task of the call, long sequences first so that no thread starts a long one last.
/// Scratch is one per thread, uninitialised. `body` must not throw.
template <typename Scratch, typename Body>
void run_tasks(const Params& p, const Plan& plan, Body body) {
  if (plan.tasks == 0) return;
  std::vector<int64_t> order(static_cast<size_t>(p.N));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return sequence_of(p, a).length > sequence_of(p, b).length; });
  const int threads = static_cast<int>(std::min<int64_t>(plan.threads, plan.tasks));
  if (threads > 1) expect_pool();
  const std::unique_ptr<Scratch[]> scratch(new Scratch[static_cast<size_t>(threads)]);
  const int64_t per_sequence = plan.tasks / p.N;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t i = 0; i < plan.tasks; ++i) {
    const Task task = task_of(p, plan, order[static_cast<size_t>(i / per_sequence)], i % per_sequence);
    body(task, scratch[static_cast<size_t>(thread_index())]);
  }
}

}  // namespace flash_kda::cpu

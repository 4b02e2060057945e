#include "cpu/plan.h"

#include <algorithm>

#include "cpu/chunked/chunked.h"

namespace flash_kda::cpu {
namespace {

/// Pieces into which each head's V columns are cut, so that few long sequences still use all threads. Every piece
/// repeats what does not depend on V (gates, norms, the products of tokens with each other), so more pieces are not
/// always faster.
int value_split_of(const Params& params, int64_t heads, int threads) {
  constexpr double kRepeated = 0.25;  // share of a head's work that each piece repeats (docs/log-performance.md)
  const int blocks = (params.V + kValueBlock - 1) / kValueBlock;
  int best = 1;
  double best_time = 0;
  for (int split = 1; split <= blocks; ++split) {
    const int64_t rounds = (heads * split + threads - 1) / threads;
    const int largest = (blocks + split - 1) / split;
    const double time = static_cast<double>(rounds) * (kRepeated + (1 - kRepeated) * largest / blocks);
    if (split == 1 || time < best_time) {
      best = split;
      best_time = time;
    }
  }
  return best;
}

}  // namespace

int threads_of(const Params& params, const Machine& machine) {
  return std::min(params.num_threads > 0 ? params.num_threads : machine.cpu_threads, machine.most_cpu_threads);
}

Plan make_plan(const Params& params, const Machine& machine) {
  Plan plan;
  const int64_t heads = params.N * params.HV;
  plan.threads = threads_of(params, machine);
  plan.value_split = value_split_of(params, heads, plan.threads);
  plan.tasks = heads * plan.value_split;
  plan.instruction_set = machine.instruction_set;
  if (params.op == Operator::kDecode) {
    plan.path = Path::kCpuRecurrent;
    plan.reason = "a chunk would be mostly padding";
    return plan;
  }
  plan.path = Path::kCpuChunked;
  plan.chunk = kChunk;
  plan.reason = "the chunked form serves every shape and gate";
  return plan;
}

}  // namespace flash_kda::cpu

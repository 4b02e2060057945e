// The fused kernel's device code on emulated warps against the fp64 recurrence: what it computes, which warp waits for
// which, and that nothing else is written. Not its registers, timing, fences and asynchronous copies: those need a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include "api/validate.h"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/cta.cuh"
#include "cuda/plan.h"
#include "lanes.h"
#include "support/compare.h"
#include "support/emulation.h"
#include "support/number_cases.h"
#include "support/problem.h"
#include "support/total_decay.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 11;

Case fused(Case c) {
  c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = FLASH_KDA_BF16;
  return c;
}

/// Of V split over two CTAs, and not (batch_invariant).
std::vector<Case> cases() {
  std::vector<Case> cases;
  const auto add = [&](const Case& c) {
    for (bool batch_invariant : {false, true}) {
      cases.push_back(fused(c));
      cases.back().batch_invariant = batch_invariant;
    }
  };
  for (int64_t T : {1, 16, 33, 250}) add({.T = T, .H = 1});
  for (Family family : {Family::kF2, Family::kF3, Family::kF4, Family::kF5, Family::kF6, Family::kF7, Family::kF8})
    add({.T = 75, .H = 1, .family = family});
  add({.T = 40, .H = 1, .HV = 2, .beta_form = FLASH_KDA_BETA_TWICE_SIGMOID});
  add({.T = 40, .H = 1, .gate_parameters = false, .l2norm = false});
  add({.lengths = {0, 37, 1, 0, 64}, .rows_after = 5});
  add({.H = 1,
       .lengths = {20, 50},
       .initial = StateRows::kPool,
       .final = StateRows::kPool,
       .final_dtype = FLASH_KDA_BF16});
  add({.B = 2, .T = 40, .H = 1, .layout = Layout::kFused, .initial = StateRows::kAbsent});
  return cases;
}

Machine hopper() {
  Machine machine;
  machine.has_gpu = true;
  machine.compute_capability = 90;
  machine.multiprocessors = 132;
  return machine;
}

template <int kStateGroups>
void run_kernel(const Params& p, const Plan& plan) {
  using cuda::fused::Shared;
  constexpr int kCtas = cuda::fused::Roles{kStateGroups}.ctas();
  constexpr size_t kBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(1024, kCtas * kBytes), &std::free);
  cuda::shared_memory = static_cast<unsigned char*>(memory.get());
  cuda::shared_memory_of_cta = kBytes;
  const cuda::fused::InputMaps maps = {cuda::emulated_map(p.q, p.T), cuda::emulated_map(p.k, p.T),
                                       cuda::emulated_map(p.g, p.T), cuda::emulated_map(p.v, p.T)};
  blockDim.x = static_cast<unsigned>(plan.threads);
  for (blockIdx.x.first = 0; blockIdx.x.first < plan.tasks; blockIdx.x.first += kCtas) {
    std::memset(memory.get(), 0xff, kCtas * kBytes);
    cuda::barriers.clear();
    const auto body = [&] {
      auto* const own = cuda::shared_memory + static_cast<size_t>(cta_rank()) * kBytes;
      cuda::fused::run_cta<kStateGroups>(p, maps, *reinterpret_cast<Shared*>(own));
    };
    ASSERT_TRUE(run_cluster(kCtas, static_cast<int>(plan.threads), body))
        << "every warp that is left waits, block " << blockIdx.x.first;
  }
}

void run_kernel(const Problem& problem) {
  const Params p = validate(problem.forward_args(), Purpose::kRun);
  const Plan plan = cuda::make_plan(p, hopper());
  ASSERT_EQ(plan.path, Path::kCudaFused);
  if (plan.value_split == 2)
    run_kernel<1>(p, plan);
  else
    run_kernel<2>(p, plan);
}

using Change = std::function<void(const Problem&)>;

Problem changed(const Case& c, flash_kda_backend backend, const Change& change) {
  Problem problem(c, kSeed, backend);
  if (change) change(problem);
  problem.take_snapshot();
  return problem;
}
Problem solve(const Case& c, const Change& change = {}) {
  Problem problem = changed(c, FLASH_KDA_BACKEND_CPU, change);
  run_kernel(problem);
  return problem;
}
Problem solve_by_oracle(const Case& c, const Change& change = {}) {
  Problem problem = changed(oracle_case(c), FLASH_KDA_BACKEND_REFERENCE, change);
  const flash_kda_forward_args args = problem.forward_args();
  EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  return problem;
}

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

class FusedOnEmulatedWarpsGrid : public testing::TestWithParam<Case> {};

TEST_P(FusedOnEmulatedWarpsGrid, AgreesWithTheRecurrence) {
  EXPECT_EQ(faults(solve(GetParam()), solve_by_oracle(GetParam()), bf16_tolerance(GetParam())), "");
}

TEST(FusedOnEmulatedWarps, C08_ALogAtItsLimits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Case c = fused({.T = 20, .H = 1});
  const auto zero = [](double A_log) { return [A_log](const Problem& p) { set_zero_gate_arguments(p, A_log); }; };
  const Problem half = solve_by_oracle(c, zero(0));
  for (double A_log : {-kInfinity, 100.0, kInfinity})
    EXPECT_EQ(faults(solve(c, zero(A_log)), half, bf16_tolerance(c)), "") << A_log;
}

TEST(FusedOnEmulatedWarps, C10_LongKeysWithoutNorm) {
  const Case c = fused({.T = 1, .l2norm = false});
  const Problem emulated = changed(c, FLASH_KDA_BACKEND_CPU, set_long_keys);
  emulate(emulated, cuda::fused::kChunk);
  EXPECT_EQ(faults_beyond_emulation(solve(c, set_long_keys), emulated, solve_by_oracle(c, set_long_keys)), "");
}

TEST(FusedOnEmulatedWarps, C28_TotalDecayOfAPartialChunk) {
  const Case c = total_decay_case(fused({.H = 1}));
  EXPECT_EQ(total_decay_faults(solve(c, set_total_decay_inputs), solve_by_oracle(c, set_total_decay_inputs)), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, FusedOnEmulatedWarpsGrid, testing::ValuesIn(cases()), name_of_parameter);

}  // namespace
}  // namespace flash_kda::test

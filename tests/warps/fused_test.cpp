// The fused kernel's device code on emulated warps against the fp64 recurrence: what it computes, which warp waits for
// which and for which copies, and that nothing else is written. Not its registers, timing and fences: those need a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

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

std::vector<Case> cases() {
  std::vector<Case> cases;
  const auto add = [&](const Case& c) { cases.push_back(fused(c)); };
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

/// When the CTAs that help run: beside those that walk, or to their end before one of these starts, as on a device that
/// others use too.
enum class Helping { kBeside, kBefore };

/// Runs the kernel on `problem`; returns how many packages were taken. seed: of run_ctas().
int64_t run_kernel(const Problem& problem, int helpers, Helping helping = Helping::kBeside, uint64_t seed = 0) {
  using cuda::fused::Shared;
  Params p = validate(problem.forward_args(), Purpose::kRun);
  const Plan plan = cuda::make_plan(p, hopper());
  EXPECT_EQ(plan.path, Path::kCudaFused);
  const cuda::fused::InputMaps maps = {cuda::emulated_map(p.q, p.T), cuda::emulated_map(p.k, p.T),
                                       cuda::emulated_map(p.g, p.T), cuda::emulated_map(p.v, p.T)};
  const auto boards = static_cast<size_t>(cuda::fused::package_offset(plan.tasks, 0));
  std::vector<unsigned char> workspace(
      static_cast<size_t>(cuda::fused::package_offset(plan.tasks, int64_t{helpers} * cuda::fused::kPackages)), 0xff);
  std::fill_n(workspace.begin(), boards, static_cast<unsigned char>(0));
  p.workspace = workspace.data();
  constexpr size_t kBytes = (sizeof(Shared) + 1023) / 1024 * 1024;
  cuda::bulk_loads.clear();
  blockDim.x = cuda::fused::kThreads;
  const auto run_blocks = [&](int64_t first, int64_t count) {  // side by side
    const size_t all_bytes = static_cast<size_t>(count) * kBytes;
    const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(1024, all_bytes), &std::free);
    std::memset(memory.get(), 0xff, all_bytes);
    cuda::shared_memory = static_cast<unsigned char*>(memory.get());
    cuda::barriers.clear();
    const auto body = [&] {
      auto* const own = cuda::shared_memory + static_cast<size_t>(cta_index()) * kBytes;
      auto* const run = helpers > 0 ? cuda::fused::run_cta<true> : cuda::fused::run_cta<false>;
      run(p, maps, helpers, first + cta_index(), *reinterpret_cast<Shared*>(own));
    };
    EXPECT_TRUE(run_ctas(static_cast<int>(count), cuda::fused::kThreads, seed, body))
        << "every warp that is left waits, block " << first << ", helpers " << helpers;
  };
  if (helpers > 0 && helping == Helping::kBeside) {
    run_blocks(0, plan.tasks + helpers);
  } else {
    if (helpers > 0) run_blocks(plan.tasks, helpers);
    for (int64_t block = 0; block < plan.tasks; ++block) run_blocks(block, 1);
  }
  return cuda::bulk_loads[cuda::fused::kPackageBytes];
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
  run_kernel(problem, 0);
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

TEST(FusedOnEmulatedWarps, HelpChangesNoBit) {
  const Case cases[] = {
      fused({.T = 810, .H = 1}),
      fused({.T = 610, .H = 1, .HV = 2, .family = Family::kF6, .gate_parameters = false}),
      fused({.H = 1, .lengths = {0, 400, 37, 600}, .initial = StateRows::kPool, .final = StateRows::kPool}),
  };
  for (const Case& c : cases) {
    const Problem alone = solve(c);
    EXPECT_EQ(faults(alone, solve_by_oracle(c), bf16_tolerance(c)), "");
    for (int helpers : {1, 3}) {
      const Problem helped = changed(c, FLASH_KDA_BACKEND_CPU, {});
      EXPECT_GT(run_kernel(helped, helpers), 0) << "nothing was taken";
      EXPECT_EQ(bitwise_faults(helped, alone), "") << name_of(c) << ", helpers " << helpers;
    }
  }
}

/// They wait in vain for a word of those that walk, end, and what they have made until then is taken later.
TEST(FusedOnEmulatedWarps, HelpersEndBeforeTheOthersStart) {
  const Case c = fused({.H = 1, .lengths = {1300, 0, 610}});
  const Problem alone = solve(c), helped = changed(c, FLASH_KDA_BACKEND_CPU, {});
  EXPECT_GT(run_kernel(helped, 2, Helping::kBefore), 0) << "nothing was taken";
  EXPECT_EQ(bitwise_faults(helped, alone), "");
}

/// Whatever the order of the warps, and however late copies and products are.
TEST(FusedOnEmulatedWarps, OrderChangesNoBit) {
  const Case c = fused({.H = 1, .lengths = {0, 1500, 70}, .final_dtype = FLASH_KDA_BF16});
  const Problem in_turn = solve(c);
  for (int helpers : {0, 1, 3})
    for (uint64_t seed : {1, 2, 3}) {
      const Problem problem = changed(c, FLASH_KDA_BACKEND_CPU, {});
      const int64_t taken = run_kernel(problem, helpers, Helping::kBeside, seed);
      EXPECT_EQ(taken > 0, helpers > 0) << taken;
      EXPECT_EQ(bitwise_faults(problem, in_turn), "") << "helpers " << helpers << ", seed " << seed;
    }
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

// The fused kernel's device code on emulated warps against the fp64 recurrence: what it computes, which warp waits for
// which, and that nothing else is written. Not its registers, timing, fences and asynchronous copies: those need a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "api/validate.h"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/cta.cuh"
#include "cuda/plan.h"
#include "lanes.h"
#include "support/compare.h"
#include "support/emulation.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 1;

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

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

class FusedOnEmulatedWarpsGrid : public testing::TestWithParam<Case> {};

TEST_P(FusedOnEmulatedWarpsGrid, AgreesWithTheRecurrence) {
  Problem oracle(oracle_case(GetParam()), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const flash_kda_forward_args oracle_args = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&oracle_args), FLASH_KDA_OK) << flash_kda_last_error();

  const Problem problem(GetParam(), kSeed, FLASH_KDA_BACKEND_CPU);
  run_kernel(problem);
  EXPECT_EQ(faults(problem, oracle, bf16_tolerance(GetParam())), "");
}

TEST(FusedOnEmulatedWarps, C28_TotalDecayOfAPartialChunk) {
  // beta = 0 and a state of ones: the final state is the total decay of each channel.
  const Case c = fused({.H = 1, .lengths = {64, 17}, .family = Family::kF5, .beta_form = FLASH_KDA_BETA_PROBABILITIES});
  Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
  for (const Problem* each : {static_cast<const Problem*>(&oracle), &problem})
    for (const auto& [name, value] : {std::pair("beta", 0.0), std::pair("initial_state", 1.0)}) {
      const flash_kda_tensor& t = each->tensor(name);
      for_each_element(t, [&](const int64_t* at, int64_t) { set(t, at, value); });
    }
  const flash_kda_forward_args oracle_args = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&oracle_args), FLASH_KDA_OK) << flash_kda_last_error();
  run_kernel(problem);
  for_each_element(oracle.tensor("final_state"), [&](const int64_t* at, int64_t) {
    const double expected = get(oracle.tensor("final_state"), at);
    ASSERT_NEAR(get(problem.tensor("final_state"), at), expected,
                std::max(1e-4 * expected, static_cast<double>(FLT_MIN)))
        << at[0] << ' ' << at[3];
  });
}

TEST(FusedOnEmulatedWarps, C10_LongKeysWithoutNorm) {
  // beta |k|^2 is near 900: what is rounded of S k is multiplied by it.
  const Case c = fused({.T = 1, .l2norm = false});
  Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU), emulated(c, kSeed, FLASH_KDA_BACKEND_CPU);
  for (const Problem* each : {static_cast<const Problem*>(&oracle), &problem, &emulated}) {
    const flash_kda_tensor& k = each->tensor("k");
    for_each_element(k, [&](const int64_t* at, int64_t) { set(k, at, 30 * get(k, at)); });
  }
  const flash_kda_forward_args oracle_args = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&oracle_args), FLASH_KDA_OK) << flash_kda_last_error();
  run_kernel(problem);
  emulate(emulated, cuda::fused::kChunk);
  for (const char* name : {"out", "final_state"}) {
    const Difference got = difference(problem, oracle, name), expected = difference(emulated, oracle, name);
    EXPECT_TRUE(got.relative <= 1.15 * expected.relative && got.worst_group <= 1.15 * expected.worst_group)
        << name << "\n  got      " << to_string(got, 4) << "\n  emulated " << to_string(expected, 4);
  }
}

TEST(FusedOnEmulatedWarps, C08_ALogAtItsLimits) {
  // Where both have gamma = lower_bound / 2, so has A_log = 0 with g + dt_bias = 0.
  const Case c = fused({.T = 20, .H = 1});
  const auto prepare = [](const Problem& p, double A_log) {
    const auto assign = [&](const char* name, const auto& value) {
      const flash_kda_tensor& t = p.tensor(name);
      for_each_element(t, [&](const int64_t* at, int64_t) { set(t, at, value(at)); });
    };
    assign("A_log", [&](const int64_t*) { return A_log; });
    assign("g", [](const int64_t* at) { return static_cast<double>(at[3]); });
    assign("dt_bias", [](const int64_t* at) { return -static_cast<double>(at[1]); });
  };
  Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  prepare(oracle, 0.0);
  const flash_kda_forward_args oracle_args = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&oracle_args), FLASH_KDA_OK) << flash_kda_last_error();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (double A_log : {-kInfinity, 100.0, kInfinity}) {
    Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
    prepare(problem, A_log);
    problem.take_snapshot();
    run_kernel(problem);
    EXPECT_EQ(faults(problem, oracle, bf16_tolerance(c)), "") << A_log;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, FusedOnEmulatedWarpsGrid, testing::ValuesIn(cases()), name_of_parameter);

}  // namespace
}  // namespace flash_kda::test

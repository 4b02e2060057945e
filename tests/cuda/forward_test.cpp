// The CUDA backend against the fp64 recurrence, over the GPU table, and what the grid cannot say: bits that repeat.
#include <gtest/gtest.h>

#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "support/compare.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 1;

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

void expect_right(const Case& c) {
  const Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const flash_kda_forward_args reference = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&reference), FLASH_KDA_OK) << flash_kda_last_error();
  const Problem problem(c, kSeed, FLASH_KDA_BACKEND_CUDA);
  ASSERT_EQ(run_on_device(problem), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(faults(problem, oracle, bf16_tolerance(c)), "");
}

class Forward : public testing::TestWithParam<Case> {};
TEST_P(Forward, AgreesWithTheRecurrence) { expect_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, Forward, testing::ValuesIn(cuda_forward_cases()), name_of_parameter);

class Small : public testing::TestWithParam<Case> {};
TEST_P(Small, AgreesWithTheRecurrence) { expect_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, Small, testing::ValuesIn(cuda_small_cases()), name_of_parameter);

TEST(Forward, RepeatsBitForBit) {
  Case c = cuda_small_cases()[0];
  c.B = 3;
  c.T = 700;
  c.H = 50;
  const Problem first(c, kSeed, FLASH_KDA_BACKEND_CUDA);
  ASSERT_EQ(run_on_device(first), FLASH_KDA_OK) << flash_kda_last_error();
  for (int run = 0; run < 20; ++run) {
    const Problem fresh(c, kSeed, FLASH_KDA_BACKEND_CUDA);
    ASSERT_EQ(run_on_device(fresh), FLASH_KDA_OK) << flash_kda_last_error();
    ASSERT_EQ(bitwise_faults(fresh, first), "") << "run " << run;
  }
}

}  // namespace
}  // namespace flash_kda::test

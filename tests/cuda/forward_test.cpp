// The CUDA backend against the fp64 recurrence, over the GPU table, and what the grid cannot say: bits that repeat.
#include <gtest/gtest.h>

#include "cuda/cases.h"
#include "cuda/solve.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

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
  const Problem first = solve(c);
  for (int run = 0; run < 20; ++run) ASSERT_EQ(bitwise_faults(solve(c), first), "") << "run " << run;
}

}  // namespace
}  // namespace flash_kda::test

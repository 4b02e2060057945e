// The CPU backend and decode against the fp64 recurrence, over the tables of cases.
#include <gtest/gtest.h>

#include "support/compare.h"
#include "support/problem.h"
#include "support/tables.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 1;

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

Problem run_oracle(const Case& c) {
  Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const flash_kda_forward_args args = oracle.forward_args();
  EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  return oracle;
}

class Forward : public testing::TestWithParam<Case> {};

TEST_P(Forward, AgreesWithTheRecurrence) {
  const Problem oracle = run_oracle(GetParam());
  const Problem problem(GetParam(), kSeed, FLASH_KDA_BACKEND_CPU);
  const flash_kda_forward_args args = problem.forward_args();
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(faults(problem, oracle, fp32_tolerance(GetParam())), "");
}

INSTANTIATE_TEST_SUITE_P(Grid, Forward, testing::ValuesIn(forward_cases()), name_of_parameter);
INSTANTIATE_TEST_SUITE_P(Accuracy, Forward, testing::ValuesIn(accuracy_cases()), name_of_parameter);

class Decode : public testing::TestWithParam<Case> {};

TEST_P(Decode, AgreesWithTheRecurrence) {
  const Problem oracle = run_oracle(GetParam());
  const Problem problem(GetParam(), kSeed, FLASH_KDA_BACKEND_CPU);
  const flash_kda_decode_args args = problem.decode_args();
  ASSERT_EQ(flash_kda_decode(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(faults(problem, oracle, fp32_tolerance(GetParam())), "");
}

INSTANTIATE_TEST_SUITE_P(Grid, Decode, testing::ValuesIn(decode_cases()), name_of_parameter);

}  // namespace
}  // namespace flash_kda::test

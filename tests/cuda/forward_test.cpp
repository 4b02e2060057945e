// The CUDA backend against the fp64 recurrence, over the GPU table.
#include <gtest/gtest.h>

#include "cuda/cases.h"
#include "cuda/solve.h"

namespace flash_kda::test {
namespace {

std::string name_of_parameter(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

class Forward : public testing::TestWithParam<Case> {};
TEST_P(Forward, AgreesWithTheRecurrence) { expect_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, Forward, testing::ValuesIn(cuda_forward_cases()), name_of_parameter);

class Small : public testing::TestWithParam<Case> {};
TEST_P(Small, AgreesWithTheRecurrence) { expect_right(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Grid, Small, testing::ValuesIn(cuda_small_cases()), name_of_parameter);

}  // namespace
}  // namespace flash_kda::test

#include "cuda/solve.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "api/validate.h"
#include "cuda/backend.h"
#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 11;

flash_kda_cuda_path default_path = FLASH_KDA_CUDA_PATH_AUTO;

void require_success(flash_kda_status status) {
  if (status != FLASH_KDA_OK) throw std::runtime_error(flash_kda_last_error());
}

Problem changed(const Case& c, flash_kda_backend backend, const Change& change) {
  Problem problem(c, kSeed, backend);
  if (change) change(problem);
  problem.take_snapshot();
  return problem;
}

}  // namespace

void set_cuda_path(flash_kda_cuda_path path) { default_path = path; }

Case bf16(Case c) {
  if (c.cuda_path == FLASH_KDA_CUDA_PATH_AUTO) c.cuda_path = default_path;
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = FLASH_KDA_BF16;
  return c;
}

Case fp32_gate(Case c) {
  c = bf16(c);
  c.gate_dtype = c.beta_dtype = FLASH_KDA_F32;
  c.cuda_path = FLASH_KDA_CUDA_PATH_AUTO;  // the fused kernel takes g in bfloat16
  return c;
}

Problem problem_of(const Case& c, const Change& change) { return changed(c, FLASH_KDA_BACKEND_CUDA, change); }

Problem solve(const Case& c, const Change& change) {
  Problem problem = problem_of(c, change);
  require_success(run_on_device(problem));
  return problem;
}

Problem solve_by_oracle(const Case& c, const Change& change) {
  Problem problem = changed(oracle_case(c), FLASH_KDA_BACKEND_REFERENCE, change);
  const flash_kda_forward_args args = problem.forward_args();
  require_success(flash_kda_forward(&args));
  return problem;
}

Plan plan_of(const Case& c, const Change& change) {
  const Problem problem = problem_of(c, change);
  return make_plan(validate(problem.forward_args(), Purpose::kRun), cuda::describe_device(0));
}

void expect_right(const Case& c, const Change& change) {
  EXPECT_EQ(faults(solve(c, change), solve_by_oracle(c, change), bf16_tolerance(c)), "") << c;
}

flash_kda_tensor slice(flash_kda_tensor t, int dimension, int64_t first, int64_t extent) {
  t.data = static_cast<char*>(t.data) + first * t.strides[dimension] * size_of(static_cast<flash_kda_dtype>(t.dtype));
  t.shape[dimension] = extent;
  return t;
}

flash_kda_forward_args slice_tokens(flash_kda_forward_args args, int64_t first, int64_t extent) {
  using Args = flash_kda_forward_args;
  for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::beta, &Args::out})
    args.*member = slice(args.*member, 1, first, extent);
  return args;
}

}  // namespace flash_kda::test

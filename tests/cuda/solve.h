// One call on the GPU and the same call by the fp64 recurrence, for tests that differ only in the case and its inputs.
#pragma once

#include <functional>

#include "api/plan.h"
#include "support/problem.h"

namespace flash_kda::test {

/// Changes inputs before the call.
using Change = std::function<void(const Problem&)>;

/// The path of every case that bf16() makes from now on and that leaves it open.
void set_cuda_path(flash_kda_cuda_path path);

/// bf16 tensors with fp32 states: the kernels' own types.
Case bf16(Case c);
/// The same with gate and beta in fp32.
Case fp32_gate(Case c);

/// The problem of a case, changed, before any call.
Problem problem_of(const Case& c, const Change& change = {});
/// After the call. Throw std::runtime_error with the library's message where it refuses.
Problem solve(const Case& c, const Change& change = {});
Problem solve_by_oracle(const Case& c, const Change& change = {});

/// What the call would take on this machine.
Plan plan_of(const Case& c, const Change& change = {});

/// The outputs agree within bf16_tolerance(c), and nothing else was written.
void expect_right(const Case& c, const Change& change = {});

/// The part of `t` that begins `first` steps along `dimension` and is `extent` long.
flash_kda_tensor slice(flash_kda_tensor t, int dimension, int64_t first, int64_t extent);
/// `args` for tokens [first, first + extent) of every batch row.
flash_kda_forward_args slice_tokens(flash_kda_forward_args args, int64_t first, int64_t extent);

}  // namespace flash_kda::test

// Inputs of cases about numbers, for every backend.
#pragma once

#include "support/problem.h"

namespace flash_kda::test {

/// C10, with l2norm off: beta |k|^2 is near 900, by which what is rounded of S k is multiplied.
inline void set_long_keys(const Problem& problem) {
  const flash_kda_tensor& k = problem.tensor("k");
  assign(problem, "k", [&](const int64_t* at) { return 30 * get(k, at); });
}

/// C08: g + dt_bias = 0, with which the gate is lower_bound / 2 for every A_log.
inline void set_zero_gate_arguments(const Problem& problem, double A_log) {
  assign(problem, "A_log", [&](const int64_t*) { return A_log; });
  assign(problem, "g", [](const int64_t* at) { return static_cast<double>(at[3]); });
  assign(problem, "dt_bias", [](const int64_t* at) { return -static_cast<double>(at[1]); });
}

}  // namespace flash_kda::test

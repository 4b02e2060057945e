#include "support/total_decay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace flash_kda::test {

Case total_decay_case(Case c) {
  c.lengths = {64, 17};
  c.family = Family::kF5;
  c.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  return c;
}

void set_total_decay_inputs(const Problem& problem) {
  assign(problem, "beta", [](const int64_t*) { return 0.0; });
  assign(problem, "initial_state", [](const int64_t*) { return 1.0; });
}

std::string total_decay_faults(const Problem& actual, const Problem& oracle) {
  std::string first;
  const flash_kda_tensor &got = actual.tensor("final_state"), &right = oracle.tensor("final_state");
  for_each_element(right, [&](const int64_t* at, int64_t) {
    const double expected = get(right, at), decay = get(got, at);
    // Below the smallest normal number nothing is left to be relative to.
    const double bar = std::max(1e-4 * expected, static_cast<double>(FLT_MIN));
    if (first.empty() && !(std::fabs(decay - expected) <= bar))
      first = fmt::format("final_state[{}, {}, {}, {}]: got {:.9g}, expected {:.9g}", at[0], at[1], at[2], at[3], decay,
                          expected);
  });
  return first;
}

}  // namespace flash_kda::test

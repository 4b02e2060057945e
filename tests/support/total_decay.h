// Case C28, for every backend: with beta = 0 and a state of ones the final state is the total decay of each channel.
#pragma once

#include <string>

#include "support/problem.h"

namespace flash_kda::test {

/// Lengths 64 + 17, so that the last chunk is partial; types, heads and path are the caller's.
Case total_decay_case(Case c);

/// The inputs of a problem of that case, before the call.
void set_total_decay_inputs(const Problem& problem);

/// The final state against the oracle's, within 1e-4 of each element: the first that is off with its coordinates, "" if
/// none is.
std::string total_decay_faults(const Problem& actual, const Problem& oracle);

}  // namespace flash_kda::test

// The tables of cases. A new shape or combination of options is one row.
#pragma once

#include <vector>

#include "support/case.h"

namespace flash_kda::test {

/// Prefill: shapes, packed batches, types, gates, options, state pools, checkpoints.
const std::vector<Case>& forward_cases();

/// One to eight tokens a sequence on a state pool in place.
const std::vector<Case>& decode_cases();

/// The accuracy rows F1 to F8: T 1024, 4 heads, K = V = 128.
const std::vector<Case>& accuracy_cases();

}  // namespace flash_kda::test

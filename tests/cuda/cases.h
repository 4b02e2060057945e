// The rows of the GPU tests: the same Case as the CPU tests, within what the CUDA kernels take.
#pragma once

#include <vector>

#include "support/case.h"

namespace flash_kda::test {

/// Prefill on the GPU: lengths, packed batches, heads, types, layouts, options, states.
const std::vector<Case>& cuda_forward_cases();

/// Few and short ones, for the sanitizers.
const std::vector<Case>& cuda_small_cases();

}  // namespace flash_kda::test

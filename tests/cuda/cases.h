// The rows of the GPU tests: the same Case as the CPU tests, within what the CUDA kernels take.
#pragma once

#include <vector>

#include "support/case.h"

namespace flash_kda::test {

/// Prefill on the GPU: lengths, packed batches, heads, types, layouts, options, states.
const std::vector<Case>& cuda_forward_cases();

/// Few and short ones, for the sanitizers.
const std::vector<Case>& cuda_small_cases();

/// Bar of a kernel with bf16 operands and fp32 accumulation, output and state, for one tensor of one seed.
/// docs/operator.md has the measured figures of the rounding itself; F6 and F7 amplify it.
double bf16_tolerance(const Case& c);

}  // namespace flash_kda::test

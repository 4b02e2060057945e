// What rounding alone costs: the chunked form of docs/operator.md in fp64, except that every operand of a matrix
// product is rounded to bf16 where a tensor-core kernel rounds it. For inputs whose own rounding decides the bar.
#pragma once

#include <string>

#include "support/problem.h"

namespace flash_kda::test {

/// Writes the outputs of `problem`, made for the CUDA backend with all memory on the host. `chunk`: 16 or 32 tokens,
/// with the anchors of the two kernels or of the fused one. Bounded gate; no state pools, no checkpoints.
void emulate(const Problem& problem, int chunk);

/// Where the rounding of the operands alone decides the bar: each output may be off by at most 1.15 times what
/// `emulated` is off by for the very same inputs. "" if it is.
std::string faults_beyond_emulation(const Problem& actual, const Problem& emulated, const Problem& oracle);

}  // namespace flash_kda::test

// What rounding alone costs: the chunked form of docs/operator.md in fp64, except that every operand of a matrix
// product is rounded to bf16 where a tensor-core kernel rounds it. For inputs whose own rounding decides the bar.
#pragma once

#include "support/problem.h"

namespace flash_kda::test {

/// Writes the outputs of `problem`, made for the CUDA backend with all memory on the host. `chunk`: 16 or 32 tokens,
/// with the anchors of the two kernels or of the fused one. Bounded gate; no state pools, no checkpoints.
void emulate(const Problem& problem, int chunk);

}  // namespace flash_kda::test

// The recurrence in fp64 on the GPU, token by token: the reference of shapes that are too long for the CPU's.
#pragma once

#include "flash_kda/flash_kda.h"

namespace flash_kda::test {

/// Every gate, beta form, head grouping, layout and state of forward over device memory, K and V up to 128; no
/// checkpoints. `out` may be F32. The call is validated like any other; backend, stream and workspace are not looked
/// at. Runs on the default stream.
void run_gpu_reference(flash_kda_forward_args args);

}  // namespace flash_kda::test

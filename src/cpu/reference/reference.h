// The oracle: the recurrence of docs/operator.md in fp64, one token after the other, as plainly as it can be written.
#pragma once

#include "api/params.h"

namespace flash_kda::cpu {

/// Reads and writes host memory; types up to F64 for outputs and states. Serves forward and decode alike.
/// threads: at most this many.
void run_reference(const Params& params, int threads);

}  // namespace flash_kda::cpu

// The choices of the CUDA backend. Plain C++: needs neither a GPU nor the toolkit.
#pragma once

#include "api/plan.h"

namespace flash_kda::cuda {

/// Pure; see api/plan.h. Throws Error, naming the argument, where no kernel supports the call.
Plan make_plan(const Params& params, const Machine& machine);

}  // namespace flash_kda::cuda

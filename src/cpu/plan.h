// The choices of the CPU backend.
#pragma once

#include "api/plan.h"

namespace flash_kda::cpu {

/// Pure; see api/plan.h.
Plan make_plan(const Params& params, const Machine& machine);

}  // namespace flash_kda::cpu

// The choices of the CPU backend.
#pragma once

#include "api/plan.h"

namespace flash_kda::cpu {

/// Columns of V that stay in one task however a head is split: a multiple of every kernel's panel.
inline constexpr int kValueBlock = 32;

/// Threads for a call of either CPU backend.
int threads_of(const Params& params, const Machine& machine);

/// Pure; see api/plan.h.
Plan make_plan(const Params& params, const Machine& machine);

}  // namespace flash_kda::cpu

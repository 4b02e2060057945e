// The recurrence in fp32, token by token: decode on a state pool.
#pragma once

#include "api/params.h"
#include "api/plan.h"

namespace flash_kda::cpu {

void run_recurrent(const Params& params, const Plan& plan);

}  // namespace flash_kda::cpu

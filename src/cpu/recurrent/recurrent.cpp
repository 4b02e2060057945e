#include "cpu/recurrent/recurrent.h"

#include "cpu/recurrent/kernel.h"
#include "cpu/tasks.h"

namespace flash_kda::cpu {

void run_recurrent(const Params& params, const Plan& plan) {
  const RecurrentKernel kernel = recurrent_kernel(plan.instruction_set);
  run_tasks<RecurrentScratch>(params, plan,
                              [&](const Task& task, RecurrentScratch& scratch) { kernel(params, task, scratch); });
}

}  // namespace flash_kda::cpu

#include "cpu/chunked/chunked.h"

#include "cpu/chunked/checkpoints.h"
#include "cpu/chunked/kernel.h"
#include "cpu/tasks.h"

namespace flash_kda::cpu {

void run_chunked(const Params& params, const Plan& plan) {
  const Checkpoints checkpoints(params);
  const ChunkedKernel kernel = chunked_kernel(plan.instruction_set);
  run_tasks<ChunkedScratch>(params, plan, [&](const Task& task, ChunkedScratch& scratch) {
    kernel(params, task, checkpoints.of_sequence(task.n), scratch);
  });
}

}  // namespace flash_kda::cpu

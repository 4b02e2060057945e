#include "cpu/plan.h"

#include "cpu/chunked/chunked.h"

namespace flash_kda::cpu {

Plan make_plan(const Params& params, const Machine& machine) {
  Plan plan;
  plan.threads = params.num_threads > 0 ? params.num_threads : machine.cpu_threads;
  plan.tasks = params.N * params.HV;
  plan.instruction_set = machine.instruction_set;
  if (params.op == Operator::kDecode) {
    plan.path = Path::kCpuRecurrent;
    plan.reason = "a chunk would be mostly padding";
    return plan;
  }
  plan.path = Path::kCpuChunked;
  plan.chunk = kChunk;
  plan.reason = "the chunked form serves every shape and gate";
  return plan;
}

}  // namespace flash_kda::cpu

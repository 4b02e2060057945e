#include "api/plan.h"

#include <algorithm>

#include "api/error.h"
#include "cpu/plan.h"
#include "cuda/plan.h"

namespace flash_kda {

const char* name_of(Path path) {
  switch (path) {
    case Path::kReference:
      return "reference";
    case Path::kCpuChunked:
      return "cpu/chunked";
    case Path::kCpuRecurrent:
      return "cpu/recurrent";
    case Path::kCudaTwoKernel:
      return "cuda/two_kernel";
    case Path::kCudaFused:
      return "cuda/fused";
  }
  return "unknown";
}

Plan make_plan(const Params& params, const Machine& machine) {
  switch (params.backend) {
    case FLASH_KDA_BACKEND_CPU:
      return cpu::make_plan(params, machine);
    case FLASH_KDA_BACKEND_CUDA:
      return cuda::make_plan(params, machine);
    case FLASH_KDA_BACKEND_REFERENCE:
      break;
  }
  Plan plan;
  plan.path = Path::kReference;
  plan.reason = "asked for";
  plan.tasks = params.N * params.HV;
  plan.threads = cpu::threads_of(params, machine);
  return plan;
}

std::string to_string(const Plan& plan) {
  return fmt::format(
      "path={} chunk={} tasks={} value_split={} helpers={} threads={} chunk_bound={} workspace_bytes={} "
      "instruction_set={} reason={}",
      name_of(plan.path), plan.chunk, plan.tasks, plan.value_split, plan.helpers, plan.threads, plan.chunk_bound,
      plan.workspace_bytes, cpu::name_of(plan.instruction_set), plan.reason);
}

}  // namespace flash_kda

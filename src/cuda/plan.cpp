#include "cuda/plan.h"

#include "api/error.h"

namespace flash_kda::cuda {

Plan make_plan(const Params& params, const Machine& machine) {
  if (!machine.has_gpu) fail(FLASH_KDA_ERROR_DEVICE, "device: got CUDA device {}, but {}", params.device, machine.why_no_gpu);
  fail(FLASH_KDA_ERROR_DEVICE, "device: this build has no CUDA kernel for the call");
}

}  // namespace flash_kda::cuda

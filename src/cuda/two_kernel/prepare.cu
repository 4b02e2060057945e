#include "cuda/two_kernel/prepare.cuh"

#include "cuda/common/check.h"
#include "cuda/common/kernel_attributes.h"

namespace flash_kda::cuda::two_kernel {

template <typename Gate>
static void launch_for_gate(const Params& params, const InputMaps& maps) {
  constexpr int kBytes = sizeof(PrepareShared<Gate>);
  allow_shared_memory<prepare<Gate>>(params.device, kBytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(slot_bound(params) * params.HV));
  config.blockDim = dim3(kPrepareThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = static_cast<cudaStream_t>(params.stream);
  check(cudaLaunchKernelEx(&config, prepare<Gate>, params, maps), "launch of two_kernel::prepare");
}

void launch_prepare(const Params& params, const InputMaps& maps) {
  if (params.g.dtype == FLASH_KDA_F32)
    launch_for_gate<float>(params, maps);
  else
    launch_for_gate<__nv_bfloat16>(params, maps);
}

}  // namespace flash_kda::cuda::two_kernel

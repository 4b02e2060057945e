#include "cuda/two_kernel/prepare.cuh"

#include "cuda/common/kernel_attributes.h"
#include "cuda/common/launch_kernel.h"

namespace flash_kda::cuda::two_kernel {

template <typename Gate>
static void launch_for_gate(const Params& params, const InputMaps& maps) {
  constexpr int kBytes = sizeof(PrepareShared<Gate>);
  allow_shared_memory<prepare<Gate>>(params.device, kBytes);
  launch_kernel("launch of two_kernel::prepare", prepare<Gate>, slot_bound(params) * params.HV, kPrepareThreads, kBytes,
                params.stream, params, maps);
}

void launch_prepare(const Params& params, const InputMaps& maps) {
  if (params.g.dtype == FLASH_KDA_F32)
    launch_for_gate<float>(params, maps);
  else
    launch_for_gate<__nv_bfloat16>(params, maps);
}

}  // namespace flash_kda::cuda::two_kernel

#include "cuda/two_kernel/recurrence.cuh"

#include "cuda/common/check.h"
#include "cuda/common/kernel_attributes.h"
#include "cuda/two_kernel/launch.h"

namespace flash_kda::cuda::two_kernel {

void launch_recurrence(const Params& params, const Plan& plan) {
  const int rows = params.V / plan.value_split, bytes = RecurrenceShared{rows}.bytes();
  allow_shared_memory<recurrence>(params.device, RecurrenceShared{params.V}.bytes());

  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.tasks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = static_cast<cudaStream_t>(params.stream);
  // The CTAs may start before prepare's results are visible, for which the load warp waits. Without tiles there is no
  // prepare, and the kernel before it in the stream is the caller's: what it writes is read without waiting.
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = plan.chunk_bound > 0;
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, recurrence, params, plan.value_split), "launch of two_kernel::recurrence");
}

}  // namespace flash_kda::cuda::two_kernel

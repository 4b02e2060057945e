#include "cuda/two_kernel/recurrence.cuh"

#include "cuda/common/kernel_attributes.h"
#include "cuda/common/launch_kernel.h"
#include "cuda/two_kernel/launch.h"

namespace flash_kda::cuda::two_kernel {

void launch_recurrence(const Params& params, const Plan& plan) {
  const int rows = params.V / plan.value_split, bytes = RecurrenceShared{rows}.bytes();
  allow_shared_memory<recurrence>(params.device, RecurrenceShared{params.V}.bytes());

  launch_kernel("launch of two_kernel::recurrence", recurrence, plan.tasks, plan.threads, bytes, params.stream, params,
                plan.value_split);
}

}  // namespace flash_kda::cuda::two_kernel

// Launch of a kernel that may start before the one ahead of it in the stream has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "cuda/common/check.h"

namespace flash_kda::cuda {

/// One-dimensional grid. `kernel` calls cudaGridDependencySynchronize() before its first access to global memory, so
/// the overlap is that of the launches alone; without the attribute a launch costs the host half a microsecond more.
/// `call` names it in messages.
template <typename... Parameters>
void launch_kernel(const char* call, void (*kernel)(Parameters...), int64_t blocks, int threads, int shared_bytes,
                   void* stream, const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), call);
}

}  // namespace flash_kda::cuda

// Attributes of kernels, set once a process and device.
#pragma once

#include <array>
#include <mutex>

#include "cuda/common/check.h"
#include "cuda/common/devices.h"

namespace flash_kda::cuda {

/// Allow `kernel` that much dynamic shared memory (more than 48 KB needs asking). The right device is current.
template <auto kernel>
void allow_shared_memory(int device, int bytes) {
  static std::array<std::once_flag, kMaxDevices> once;
  std::call_once(once[static_cast<size_t>(device)], [&] {
    check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "cudaFuncSetAttribute");
  });
}

}  // namespace flash_kda::cuda

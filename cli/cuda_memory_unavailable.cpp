// GPU memory in a build without the CUDA toolkit.
#include "api/error.h"
#include "cli/device_memory.h"

namespace flash_kda::cli {

std::unique_ptr<DeviceMemory> make_cuda_memory(int) {
  fail(FLASH_KDA_ERROR_DEVICE, "--device: got cuda, accepted by a build without CUDA is auto, cpu or reference");
}

}  // namespace flash_kda::cli

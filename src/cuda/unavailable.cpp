// The CUDA backend of a build without the CUDA toolkit.
#include "api/error.h"
#include "cuda/backend.h"

namespace flash_kda::cuda {

static constexpr const char* kWhy = "this build of FlashKDA has no CUDA backend (configure with FLASH_KDA_CUDA=ON and nvcc)";

void describe_device(int, Machine& machine) {
  machine.has_gpu = false;
  machine.why_no_gpu = kWhy;
}

int count_devices(std::string& why) {
  why = kWhy;
  return 0;
}

const char* toolkit_version() { return ""; }

void launch(const Params&, const Plan&) { fail(FLASH_KDA_ERROR_DEVICE, "device: {}", kWhy); }

}  // namespace flash_kda::cuda

// The CUDA backend of a build without the CUDA toolkit.
#include "api/error.h"
#include "cuda/backend.h"

namespace flash_kda::cuda {

static constexpr const char* kWhy =
    "this build of FlashKDA has no CUDA backend (configure with FLASH_KDA_CUDA=ON and nvcc)";

const Machine& describe_device(int) {
  static const Machine none = [] {
    Machine machine;
    machine.why_no_gpu = kWhy;
    return machine;
  }();
  return none;
}

int count_devices(std::string& why) {
  why = kWhy;
  return 0;
}

const char* toolkit_version() { return ""; }

void launch(const Params&, const Plan&) { fail(FLASH_KDA_ERROR_DEVICE, "device: {}", kWhy); }

}  // namespace flash_kda::cuda

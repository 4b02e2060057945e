#include "cuda/common/check.h"

#include "api/error.h"

namespace flash_kda::cuda {

void fail_call(cudaError_t code, const char* call, Place place) {
  fail(FLASH_KDA_ERROR_CUDA, "{} returned {} ({}: {}) at {}:{}", call, static_cast<int>(code), cudaGetErrorName(code),
       cudaGetErrorString(code), place.file, place.line);
}

}  // namespace flash_kda::cuda

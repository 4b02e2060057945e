// Every CUDA call goes through check(): a failure throws Error with the call, its code and its place.
#pragma once

#include <cuda_runtime_api.h>

#include "common/place.h"

namespace flash_kda::cuda {

/// Throws Error. Out of line, so that files compiled by nvcc need no formatting library.
[[noreturn]] void fail_call(cudaError_t code, const char* call, Place place);

inline void check(cudaError_t code, const char* call, Place place = Place::current()) {
  if (code != cudaSuccess) fail_call(code, call, place);
}

}  // namespace flash_kda::cuda

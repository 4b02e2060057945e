// The CUDA backend as the rest of the library sees it. Built from launch.cpp with the toolkit, from unavailable.cpp
// without.
#pragma once

#include <string>
#include <vector>

#include "api/params.h"
#include "api/plan.h"

namespace flash_kda::cuda {

/// The GPU part of Machine for device `ordinal`, or why it cannot be used. Properties are read once a process and
/// device.
const Machine& describe_device(int ordinal);

/// Usable devices, or why there are none (then `why` is not empty).
int count_devices(std::string& why);

/// "13.0", or "" in a build without CUDA.
const char* toolkit_version();

/// Enqueue the kernels of `plan` on params.stream.
void launch(const Params& params, const Plan& plan);

}  // namespace flash_kda::cuda

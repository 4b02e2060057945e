// CUDA devices of the process.
#pragma once

namespace flash_kda::cuda {

/// Devices beyond this many are not used; what is remembered a device is kept in arrays of this size.
inline constexpr int kMaxDevices = 64;

}  // namespace flash_kda::cuda

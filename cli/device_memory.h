// Memory, copies and time on the device that runs the operator.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"

namespace flash_kda::cli {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// "AMD EPYC ..." or "NVIDIA H200".
  virtual std::string device_name() const = 0;
  /// Zeroed bytes, aligned to 256, that live as long as this object.
  virtual void* allocate(size_t bytes) = 0;
  /// Where the device reads what `host` holds: there on the CPU, a copy on a GPU. `host` must outlive this object.
  virtual const void* place(const void* host, size_t bytes) = 0;
  /// Copy results to the host, after everything that was enqueued.
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  /// Copy within the device; enqueued on a GPU.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  /// Seconds of each of `repeats` calls of `enqueue`, by the device's own clock where it has one. The calls follow each
  /// other without a pause, so that a GPU's time does not include the host's.
  virtual std::vector<double> time(int repeats, const std::function<void()>& enqueue) = 0;
};

/// Throws Error if there is no such device.
std::unique_ptr<DeviceMemory> make_device_memory(const Device& device);
std::unique_ptr<DeviceMemory> make_host_memory();
std::unique_ptr<DeviceMemory> make_cuda_memory(int ordinal);

}  // namespace flash_kda::cli

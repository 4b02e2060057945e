#include <array>
#include <mutex>
#include <vector>

#include "api/error.h"
#include "api/validate.h"
#include "cuda/backend.h"
#include "cuda/common/check.h"
#include "cuda/common/devices.h"
#include "cuda/fused/launch.h"
#include "cuda/two_kernel/launch.h"

namespace flash_kda::cuda {
namespace {

/// Makes `device` current and puts the caller's device back.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ == device) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Number of devices, or 0 and the reason.
int device_count(std::string& why) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();  // the failure is reported here: leave no sticky error behind
    why = fmt::format("no CUDA device can be used: {} ({})", cudaGetErrorString(code), cudaGetErrorName(code));
    return 0;
  }
  if (count == 0) why = "there is no CUDA device";
  return count < kMaxDevices ? count : kMaxDevices;
}

Machine read_device(int ordinal) {
  Machine machine;
  const int count = device_count(machine.why_no_gpu);
  if (count == 0) return machine;
  if (ordinal >= count) {
    machine.why_no_gpu = fmt::format("there are only {} CUDA devices", count);
    return machine;
  }
  cudaDeviceProp properties;
  const cudaError_t code = cudaGetDeviceProperties(&properties, ordinal);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    machine.why_no_gpu = fmt::format("cudaGetDeviceProperties failed: {}", cudaGetErrorString(code));
    return machine;
  }
  machine.has_gpu = true;
  machine.gpu_name = properties.name;
  machine.compute_capability = 10 * properties.major + properties.minor;
  machine.multiprocessors = properties.multiProcessorCount;
  return machine;
}

/// The opt-in check of what only the device knows. Synchronises the stream.
void read_and_check_cu_seqlens(const Params& params) {
  std::vector<int64_t> entries(static_cast<size_t>(params.N) + 1);  // room for either type
  const size_t bytes = entries.size() * (params.cu_seqlens_is_64bit ? sizeof(int64_t) : sizeof(int32_t));
  const auto stream = static_cast<cudaStream_t>(params.stream);
  check(cudaMemcpyAsync(entries.data(), params.cu_seqlens, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check_cu_seqlens(params, entries.data());
}

}  // namespace

const Machine& describe_device(int ordinal) {
  static std::array<std::once_flag, kMaxDevices> once;
  static std::array<Machine, kMaxDevices> machines;
  static const Machine none = [] {
    Machine machine;
    machine.why_no_gpu = fmt::format("device ordinals end at {}", kMaxDevices - 1);
    return machine;
  }();
  if (ordinal < 0 || ordinal >= kMaxDevices) return none;
  const auto i = static_cast<size_t>(ordinal);
  std::call_once(once[i], [&] { machines[i] = read_device(ordinal); });
  return machines[i];
}

int count_devices(std::string& why) { return device_count(why); }

const char* toolkit_version() {
  static const std::string version = fmt::format("{}.{}", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  return version.c_str();
}

void launch(const Params& params, const Plan& plan) {
  const DeviceGuard guard(params.device);
  if (params.packed && params.check_cu_seqlens) read_and_check_cu_seqlens(params);
  if (plan.path == Path::kCudaFused)
    fused::launch(params, plan);
  else
    two_kernel::launch(params, plan);
}

}  // namespace flash_kda::cuda

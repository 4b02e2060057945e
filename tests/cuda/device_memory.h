// Device memory of the GPU tests and benchmarks, and a Problem whose blocks live there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/common/check.h"
#include "flash_kda/flash_kda.h"
#include "support/problem.h"

namespace flash_kda::test {

/// Plain cudaMalloc, filled with kPoison.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
    void* pointer = nullptr;
    cuda::check(cudaMalloc(&pointer, bytes == 0 ? 1 : bytes), "cudaMalloc");
    data_.reset(static_cast<unsigned char*>(pointer));
    cuda::check(cudaMemset(pointer, kPoison, bytes), "cudaMemset");
  }
  unsigned char* get() const { return data_.get(); }
  size_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(unsigned char* pointer) const { (void)cudaFree(pointer); }
  };
  size_t bytes_;
  std::unique_ptr<unsigned char, Free> data_;
};

/// The blocks of a Problem on the current device, with guards and poison, and a workspace of exactly the size asked
/// for.
class DeviceProblem {
 public:
  explicit DeviceProblem(const Problem& problem);

  /// Arguments over device memory, workspace included.
  flash_kda_forward_args args() const;
  /// Copy the host blocks of `problem` (of the same case) here, or what is here to them. Synchronises.
  void upload(const Problem& problem);
  void download(const Problem& problem) const;

  unsigned char* workspace() const { return workspace_ ? workspace_->get() : nullptr; }

 private:
  std::vector<DeviceMemory> blocks_;
  flash_kda_forward_args args_ = {};
  std::unique_ptr<DeviceMemory> workspace_;
};

/// Run `problem` on the current device: upload, one call, download.
flash_kda_status run_on_device(const Problem& problem);

}  // namespace flash_kda::test

#include "cuda/device_memory.h"

namespace flash_kda::test {

DeviceProblem::DeviceProblem(const Problem& problem) {
  std::vector<unsigned char*> bases;
  for (const Block& block : problem.blocks()) {
    blocks_.emplace_back(block.size);
    // The guard in front keeps the alignment of what follows: both are multiples of 256.
    bases.push_back(blocks_.back().get());
  }
  args_ = problem.forward_args(bases);
  args_.backend = FLASH_KDA_BACKEND_CUDA;
  size_t bytes = 0;
  if (flash_kda_forward_workspace_size(&args_, &bytes) == FLASH_KDA_OK) {
    workspace_ = std::make_unique<DeviceMemory>(bytes);
    args_.workspace = workspace_->get();
    args_.workspace_size = bytes;
  }
  upload(problem);
}

flash_kda_forward_args DeviceProblem::args() const { return args_; }

void DeviceProblem::upload(const Problem& problem) {
  for (size_t i = 0; i < blocks_.size(); ++i)
    cuda::check(cudaMemcpy(blocks_[i].get(), problem.blocks()[i].data(), blocks_[i].size(), cudaMemcpyHostToDevice),
                "cudaMemcpy");
  // Streams that do not wait for the default stream may use it next.
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void DeviceProblem::download(const Problem& problem) const {
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  for (size_t i = 0; i < blocks_.size(); ++i)
    cuda::check(cudaMemcpy(problem.blocks()[i].data(), blocks_[i].get(), blocks_[i].size(), cudaMemcpyDeviceToHost),
                "cudaMemcpy");
}

flash_kda_status run_on_device(const Problem& problem) {
  const DeviceProblem device(problem);
  const flash_kda_forward_args args = device.args();
  const flash_kda_status status = flash_kda_forward(&args);
  if (status == FLASH_KDA_OK) device.download(problem);
  return status;
}

}  // namespace flash_kda::test

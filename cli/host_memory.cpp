#include <chrono>
#include <cstring>
#include <fstream>

#include "cli/device_memory.h"
#include "io/safetensors.h"

namespace flash_kda::cli {
namespace {

class HostMemory : public DeviceMemory {
 public:
  std::string device_name() const override {
    std::ifstream stream("/proc/cpuinfo");
    for (std::string line; std::getline(stream, line);)
      if (line.starts_with("model name") && line.find(": ") != std::string::npos)
        return line.substr(line.find(": ") + 2);
    return "cpu";
  }

  void* allocate(size_t bytes) override {
    buffers_.emplace_back(bytes);
    std::memset(buffers_.back().data(), 0, bytes);
    return buffers_.back().data();
  }

  const void* place(const void* host, size_t) override { return host; }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  std::vector<double> time(int repeats, const std::function<void()>& enqueue) override {
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return seconds;
  }

 private:
  std::vector<io::Buffer> buffers_;
};

}  // namespace

std::unique_ptr<DeviceMemory> make_host_memory() { return std::make_unique<HostMemory>(); }

std::unique_ptr<DeviceMemory> make_device_memory(const Device& device) {
  return device.backend == FLASH_KDA_BACKEND_CUDA ? make_cuda_memory(device.ordinal) : make_host_memory();
}

}  // namespace flash_kda::cli

// GPU memory through the CUDA runtime; host code only.
#include <cuda_runtime_api.h>

#include "api/error.h"
#include "cli/device_memory.h"
#include "common/place.h"

namespace flash_kda::cli {
namespace {

void check(cudaError_t status, const char* call, Place place = Place::current()) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it has been reported here; the next call starts clean
  fail(FLASH_KDA_ERROR_CUDA, "{}: {} ({}): {}, at {}:{}", call, cudaGetErrorName(status), static_cast<int>(status),
       cudaGetErrorString(status), place.file, place.line);
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() { check(cudaEventRecord(event_, nullptr), "cudaEventRecord"); }
  double seconds_since(const Event& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaMemory : public DeviceMemory {
 public:
  explicit CudaMemory(int ordinal) : ordinal_(ordinal) { check(cudaSetDevice(ordinal), "cudaSetDevice"); }
  ~CudaMemory() override {
    for (void* pointer : pointers_) cudaFree(pointer);
  }
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  std::string device_name() const override {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, ordinal_), "cudaGetDeviceProperties");
    return properties.name;
  }

  void* allocate(size_t bytes) override {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, bytes == 0 ? 1 : bytes), "cudaMalloc");
    pointers_.push_back(pointer);
    check(cudaMemset(pointer, 0, bytes), "cudaMemset");
    return pointer;
  }

  const void* place(const void* host, size_t bytes) override {
    void* pointer = allocate(bytes);
    check(cudaMemcpy(pointer, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return pointer;
  }

  void download(void* host, const void* device, size_t bytes) override {
    check(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

  void copy(void* to, const void* from, size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "cudaMemcpyAsync");
  }

  std::vector<double> time(int repeats, const std::function<void()>& enqueue) override {
    std::vector<Event> begin(static_cast<size_t>(repeats)), end(static_cast<size_t>(repeats));
    for (size_t i = 0; i < begin.size(); ++i) {
      begin[i].record();
      enqueue();
      end[i].record();
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<double> seconds;
    for (size_t i = 0; i < begin.size(); ++i) seconds.push_back(end[i].seconds_since(begin[i]));
    return seconds;
  }

 private:
  int ordinal_;
  std::vector<void*> pointers_;
};

}  // namespace

std::unique_ptr<DeviceMemory> make_cuda_memory(int ordinal) { return std::make_unique<CudaMemory>(ordinal); }

}  // namespace flash_kda::cli

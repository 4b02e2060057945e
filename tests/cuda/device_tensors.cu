#include "cuda/device_tensors.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/common/check.h"
#include "cuda/device_memory.h"
#include "cuda/solve.h"

namespace flash_kda::test {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostBlocks = 1 << 16;

unsigned blocks_for(int64_t elements) {
  return static_cast<unsigned>(std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}

__host__ __device__ int64_t elements_of(const flash_kda_tensor& x) {
  int64_t n = 1;
  for (int d = 0; d < x.rank; ++d) n *= x.shape[d];
  return n;
}

/// Offset of the i-th element in row-major order.
__device__ int64_t offset_of_index(const flash_kda_tensor& x, int64_t i) {
  int64_t offset = 0;
  for (int d = x.rank - 1; d >= 0; --d) {
    offset += i % x.shape[d] * x.strides[d];
    i /= x.shape[d];
  }
  return offset;
}

__device__ float load(const flash_kda_tensor& x, int64_t offset) {
  return x.dtype == FLASH_KDA_F32 ? static_cast<const float*>(x.data)[offset]
                                  : __bfloat162float(static_cast<const __nv_bfloat16*>(x.data)[offset]);
}

/// The finaliser of SplitMix64.
__device__ uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

__global__ void fill(flash_kda_tensor x, uint64_t key, float mean, float deviation) {
  const int64_t elements = elements_of(x), step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    const uint64_t bits = mix(mix(key) + static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    const float value = mean + deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * angle);
    const int64_t offset = offset_of_index(x, i);
    if (x.dtype == FLASH_KDA_F32)
      static_cast<float*>(x.data)[offset] = value;
    else
      static_cast<__nv_bfloat16*>(x.data)[offset] = __float2bfloat16_rn(value);
  }
}

/// Of one head.
struct Sums {
  double error, expected;  // squares
  unsigned long long not_finite;
};

__global__ void add_differences(flash_kda_tensor actual, flash_kda_tensor expected, Sums* sums) {
  const int64_t elements = elements_of(actual), step = static_cast<int64_t>(gridDim.x) * kThreads;
  double error = 0, norm = 0;
  unsigned long long not_finite = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements; i += step) {
    const double a = load(actual, offset_of_index(actual, i)), e = load(expected, offset_of_index(expected, i));
    if (!isfinite(a) || !isfinite(e)) {
      ++not_finite;
      continue;
    }
    error += (a - e) * (a - e);
    norm += e * e;
  }
  atomicAdd(&sums->error, error);
  atomicAdd(&sums->expected, norm);
  atomicAdd(&sums->not_finite, not_finite);
}

__global__ void copy_after(unsigned char* target, const unsigned char* source, size_t bytes, long long nanoseconds) {
  cudaTriggerProgrammaticLaunchCompletion();
  long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
  for (size_t i = threadIdx.x; i < bytes; i += kThreads) target[i] = source[i];
}

}  // namespace

void fill_normal(const flash_kda_tensor& x, uint64_t seed, float mean, float deviation) {
  fill<<<blocks_for(elements_of(x)), kThreads>>>(x, seed, mean, deviation);
  cuda::check(cudaGetLastError(), "launch of fill");
}

DeviceDifference compare_on_device(const flash_kda_tensor& actual, const flash_kda_tensor& expected,
                                   int head_dimension) {
  std::vector<Sums> sums(static_cast<size_t>(actual.shape[head_dimension]));
  const size_t bytes = sums.size() * sizeof(Sums);
  const DeviceMemory memory(bytes);
  cuda::check(cudaMemset(memory.get(), 0, bytes), "cudaMemset");
  for (size_t head = 0; head < sums.size(); ++head) {
    const flash_kda_tensor a = slice(actual, head_dimension, static_cast<int64_t>(head), 1);
    const flash_kda_tensor e = slice(expected, head_dimension, static_cast<int64_t>(head), 1);
    add_differences<<<std::min(blocks_for(elements_of(a)), 1024u), kThreads>>>(
        a, e, reinterpret_cast<Sums*>(memory.get()) + head);
    cuda::check(cudaGetLastError(), "launch of add_differences");
  }
  cuda::check(cudaMemcpy(sums.data(), memory.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  DeviceDifference result;
  double error = 0, norm = 0;
  for (const Sums& s : sums) {
    error += s.error;
    norm += s.expected;
    result.not_finite += static_cast<int64_t>(s.not_finite);
    result.worst_head = std::max(result.worst_head, std::sqrt(s.error / s.expected));
  }
  result.relative = std::sqrt(error / norm);
  return result;
}

void copy_late(void* target, const void* source, size_t bytes, int milliseconds, cudaStream_t stream) {
  copy_after<<<1, kThreads, 0, stream>>>(static_cast<unsigned char*>(target), static_cast<const unsigned char*>(source),
                                         bytes, 1000000ll * milliseconds);
  cuda::check(cudaGetLastError(), "launch of copy_after");
}

}  // namespace flash_kda::test

// Device time of the fused path, and of each stage of the two-kernel path and every value split, over the cases of
// docs/log-performance.md; the numbers behind the choices in src/cuda/plan.cpp.   cuda_stages [heads ...]
#include <cuda_bf16.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "api/plan.h"
#include "api/validate.h"
#include "cuda/backend.h"
#include "cuda/common/check.h"
#include "cuda/two_kernel/config.h"
#include "cuda/two_kernel/launch.h"

namespace {

using namespace flash_kda;
using cuda::check;

/// Standard normal by Box-Muller on a hashed counter, times `scale` plus `shift`, as bf16.
__global__ void fill_normal(__nv_bfloat16* x, int64_t count, unsigned seed, float scale, float shift) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  auto hash = [&](unsigned salt) {
    unsigned long long z = (static_cast<unsigned long long>(i) * 2 + salt) * 0x9E3779B97F4A7C15ull + seed;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return static_cast<float>((z >> 40) + 1) * (1.0f / 16777217.0f);
  };
  x[i] = __float2bfloat16(sqrtf(-2.0f * logf(hash(0))) * cospif(2.0f * hash(1)) * scale + shift);
}

struct Buffer {
  void* data = nullptr;
  explicit Buffer(size_t bytes) { check(cudaMalloc(&data, std::max<size_t>(bytes, 256)), "cudaMalloc"); }
  ~Buffer() { (void)cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

flash_kda_tensor tensor(void* data, flash_kda_dtype dtype, std::vector<int64_t> shape) {
  flash_kda_tensor t = {};
  t.data = data;
  t.dtype = dtype;
  t.rank = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    t.shape[d] = shape[static_cast<size_t>(d)];
    t.strides[d] = stride;
    stride *= t.shape[d];
  }
  return t;
}

/// Median device time of 20 calls after 3, ms.
double time_ms(const std::function<void()>& call) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    check(cudaEventRecord(begin), "cudaEventRecord");
    call();
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
    if (i >= 3) times.push_back(ms);
  }
  check(cudaEventDestroy(begin), "cudaEventDestroy");
  check(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(times.begin(), times.begin() + 10, times.end());
  return times[10];
}

void run(const char* name, int64_t H, const std::vector<int64_t>& lengths) {
  int64_t T = 0;
  std::vector<int64_t> cu{0};
  for (int64_t length : lengths) cu.push_back(T += length);
  const auto N = static_cast<int64_t>(lengths.size());
  const size_t elements = static_cast<size_t>(T * H * 128), states = static_cast<size_t>(N * H * 128 * 128);
  Buffer q(elements * 2), k(elements * 2), v(elements * 2), g(elements * 2), out(elements * 2),
      beta(static_cast<size_t>(T * H) * 2);
  Buffer initial(states * 4), final(states * 4), A_log(H * 4), dt_bias(H * 512), cu_device(cu.size() * 8);
  unsigned seed = 1;
  const auto fill = [&](Buffer& b, int64_t count, float scale, float shift) {
    fill_normal<<<static_cast<unsigned>((count + 255) / 256), 256>>>(static_cast<__nv_bfloat16*>(b.data), count, seed++,
                                                                     scale, shift);
    check(cudaGetLastError(), "fill");
  };
  fill(q, T * H * 128, 1, 0);
  fill(k, T * H * 128, 1, 0);
  fill(v, T * H * 128, 1, 0);
  fill(g, T * H * 128, 1, 0);
  fill(beta, T * H, 1, 0);
  check(cudaMemset(initial.data, 0, states * 4), "cudaMemset");
  check(cudaMemset(A_log.data, 0, H * 4), "cudaMemset");
  check(cudaMemset(dt_bias.data, 0, H * 512), "cudaMemset");
  check(cudaMemcpy(cu_device.data, cu.data(), cu.size() * 8, cudaMemcpyHostToDevice), "cudaMemcpy");

  flash_kda_forward_args args;
  flash_kda_forward_args_init(&args);
  args.backend = FLASH_KDA_BACKEND_CUDA;
  args.q = tensor(q.data, FLASH_KDA_BF16, {1, T, H, 128});
  args.k = tensor(k.data, FLASH_KDA_BF16, {1, T, H, 128});
  args.v = tensor(v.data, FLASH_KDA_BF16, {1, T, H, 128});
  args.g = tensor(g.data, FLASH_KDA_BF16, {1, T, H, 128});
  args.out = tensor(out.data, FLASH_KDA_BF16, {1, T, H, 128});
  args.beta = tensor(beta.data, FLASH_KDA_BF16, {1, T, H});
  args.A_log = tensor(A_log.data, FLASH_KDA_F32, {H});
  args.dt_bias = tensor(dt_bias.data, FLASH_KDA_F32, {H, 128});
  args.initial_state = tensor(initial.data, FLASH_KDA_F32, {N, H, 128, 128});
  args.final_state = tensor(final.data, FLASH_KDA_F32, {N, H, 128, 128});
  args.cu_seqlens = tensor(cu_device.data, FLASH_KDA_I64, {N + 1});
  args.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
  const double fused_ms = [&] {
    Params params = validate(args, Purpose::kRun);
    const Plan plan = make_plan(params, cuda::describe_device(0));
    const Buffer workspace(plan.workspace_bytes);
    params.workspace = workspace.data;
    params.workspace_size = plan.workspace_bytes;
    return time_ms([&] { cuda::launch(params, plan); });
  }();
  args.cuda_path = FLASH_KDA_CUDA_PATH_TWO_KERNEL;
  Params params = validate(args, Purpose::kRun);
  Plan plan = make_plan(params, cuda::describe_device(0));
  Buffer workspace(plan.workspace_bytes);
  params.workspace = workspace.data;
  params.workspace_size = plan.workspace_bytes;

  const double floor_bytes =
      static_cast<double>(elements) * 10 + static_cast<double>(T * H) * 2 + static_cast<double>(states) * 8;
  Buffer copy(static_cast<size_t>(floor_bytes / 2) * 2);
  const auto half = static_cast<size_t>(floor_bytes / 4);
  const double copy_ms =
      2 * time_ms([&] {
        check(cudaMemcpyAsync(static_cast<char*>(copy.data) + half, copy.data, half, cudaMemcpyDeviceToDevice),
              "cudaMemcpyAsync");
      });
  const auto maps = cuda::two_kernel::input_maps(params);
  const double prepare_ms = time_ms([&] { cuda::two_kernel::launch_prepare(params, maps); });
  std::printf("%-16s H %3d  floor %.4f  prepare %.4f  plan split %d  recurrence", name, static_cast<int>(H), copy_ms,
              prepare_ms, plan.value_split);
  for (int split : {1, 2, 4, 8}) {
    Plan other = plan;
    other.value_split = split;
    other.tasks = params.N * params.HV * split;
    other.threads = cuda::two_kernel::recurrence_threads(128 / split);
    std::printf("  /%d %.4f", split, time_ms([&] { cuda::two_kernel::launch_recurrence(params, other); }));
  }
  std::printf("  whole %.4f  fused %.4f\n", time_ms([&] { cuda::launch(params, plan); }), fused_ms);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> heads;
  for (int i = 1; i < argc; ++i) heads.push_back(std::atoi(argv[i]));
  if (heads.empty()) heads = {96, 64, 12};
  try {
    for (int64_t H : heads) {
      run("fixed8192", H, {8192});
      run("ragged8192", H, {1300, 547, 2048, 963, 271, 3063});
      run("8x1024", H, std::vector<int64_t>(8, 1024));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

// Host time of one flash_kda::forward call from C++ on a GPU: validation, plan, tensor maps and launches, without
// waiting for the kernels. Prints a benchmark row of a verification record for each path.   host_cost [FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cuda/backend.h"
#include "cuda/device_memory.h"
#include "flash_kda/flash_kda.hpp"
#include "support/problem.h"

namespace flash_kda {
namespace {

/// The path that the plan of the call names, without its backend.
std::string path_of(const flash_kda_forward_args& args) {
  constexpr std::string_view kPrefix = "path=cuda/";
  const std::string plan = describe(args);
  return plan.substr(kPrefix.size(), plan.find(' ') - kPrefix.size());
}

/// The paths that this GPU has: it would refuse the others.
std::vector<flash_kda_cuda_path> paths_here() {
  if (cuda::describe_device(0).compute_capability == 90)
    return {FLASH_KDA_CUDA_PATH_TWO_KERNEL, FLASH_KDA_CUDA_PATH_FUSED};
  std::fprintf(stderr, "the fused path is left out: it is for compute capability 9.0\n");
  return {FLASH_KDA_CUDA_PATH_TWO_KERNEL};
}

/// The fastest of many short runs, after a second of them: other load only ever adds, a short run never fills the GPU's
/// queue, and clocks take a while to rise.
double milliseconds(const flash_kda_forward_args& args) {
  constexpr int kCalls = 100;
  constexpr auto kWarmUp = std::chrono::seconds(1), kMeasure = std::chrono::seconds(1);
  double best_ms = 1e300;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < start + kWarmUp + kMeasure) {
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call) forward(args);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    best_ms = std::min(best_ms, time.count() / kCalls);
  }
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return best_ms;
}

nlohmann::ordered_json row_of(flash_kda_cuda_path path) {
  test::Case c;
  c.T = 64;
  c.H = 1;
  c.lengths = {64};
  c.wide_cu_seqlens = true;
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = FLASH_KDA_BF16;
  c.cuda_path = path;
  const test::Problem problem(c, 1, FLASH_KDA_BACKEND_CUDA);
  const test::DeviceProblem device(problem);
  const flash_kda_forward_args args = device.args();
  return {{"name", "host/cpp"}, {"path", path_of(args)}, {"ms", milliseconds(args)}, {"floor_ms", 0.0}};
}

}  // namespace
}  // namespace flash_kda

int main(int argc, char** argv) try {
  nlohmann::ordered_json rows;
  for (const flash_kda_cuda_path path : flash_kda::paths_here()) {
    rows.push_back(flash_kda::row_of(path));
    std::printf("%s\n", rows.back().dump().c_str());
  }
  if (argc > 1) std::ofstream(argv[1]) << nlohmann::ordered_json{{"benchmarks", rows}}.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

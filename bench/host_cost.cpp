// Host time of one flash_kda_forward call from C++ on a GPU: validation, plan, tensor maps and launches, without
// waiting for the kernels. Prints one benchmark row of a verification record.   host_cost [FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cuda/device_memory.h"
#include "support/problem.h"

int main(int argc, char** argv) {
  using namespace flash_kda;
  test::Case c;
  c.T = 64;
  c.H = 1;
  c.lengths = {64};
  c.wide_cu_seqlens = true;
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = FLASH_KDA_BF16;
  const test::Problem problem(c, 1, FLASH_KDA_BACKEND_CUDA);
  const test::DeviceProblem device(problem);
  const flash_kda_forward_args args = device.args();

  // The fastest of many short runs: other load only ever adds, and a short run never fills the GPU's queue.
  constexpr int kRuns = 200, kCalls = 100;
  double best_ms = 1e300;
  for (int run = 0; run < kRuns; ++run) {
    cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < kCalls; ++call)
      if (flash_kda_forward(&args) != FLASH_KDA_OK) {
        std::fprintf(stderr, "%s\n", flash_kda_last_error());
        return 1;
      }
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    best_ms = std::min(best_ms, time.count() / kCalls);
  }
  cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const nlohmann::ordered_json row = {{"name", "host/cpp"},
                                      {"path", "two_kernel"},
                                      {"ms", best_ms},
                                      {"floor_ms", 0.0},
                                      {"peers_ms", nlohmann::json::object()}};
  std::printf("%s\n", row.dump().c_str());
  if (argc > 1) std::ofstream(argv[1]) << nlohmann::ordered_json{{"benchmarks", {row}}}.dump(1) << "\n";
  return 0;
}

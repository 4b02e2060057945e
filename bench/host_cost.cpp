// Host time of one flash_kda_forward call from C++ on a GPU: validation, plan, tensor maps and launches, without
// waiting for the kernels. Prints one benchmark row of a verification record.   host_cost [FILE]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string_view>

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

  // The fastest of many short runs, after a second of them: other load only ever adds, a short run never fills the
  // GPU's queue, and clocks take a while to rise.
  constexpr int kCalls = 100;
  constexpr auto kWarmUp = std::chrono::seconds(1), kMeasure = std::chrono::seconds(1);
  double best_ms = 1e300;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < start + kWarmUp + kMeasure) {
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
  char plan[1024] = "";
  if (flash_kda_forward_describe(&args, plan, sizeof plan) != FLASH_KDA_OK) return 1;
  const std::string_view prefix = "path=cuda/", text = plan;
  const nlohmann::ordered_json row = {{"name", "host/cpp"},
                                      {"path", text.substr(prefix.size(), text.find(' ') - prefix.size())},
                                      {"ms", best_ms},
                                      {"floor_ms", 0.0},
                                      {"peers_ms", nlohmann::json::object()}};
  std::printf("%s\n", row.dump().c_str());
  if (argc > 1) std::ofstream(argv[1]) << nlohmann::ordered_json{{"benchmarks", {row}}}.dump(1) << "\n";
  return 0;
}

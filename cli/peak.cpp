#include "cli/peak.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cli/peak.cpp"
#include <hwy/foreach_target.h>
// After foreach_target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace flash_kda::cli::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// `rounds` times twelve independent multiply-adds (a latency of 4 to 5 cycles times two units needs ten), each of a
/// whole vector. Returns the number of operations; `sink` keeps the results alive.
double multiply_add(int rounds, float* sink) {
  const hn::ScalableTag<float> tag;
  const auto factor = hn::Set(tag, 0.999F), term = hn::Set(tag, 0.001F);
  // Each starts elsewhere: the compiler would compute equal ones once.
  const auto start = [&](float offset) { return hn::Set(tag, *sink + offset); };
  auto a0 = start(0), a1 = start(1), a2 = start(2), a3 = start(3), a4 = start(4), a5 = start(5);
  auto a6 = start(6), a7 = start(7), a8 = start(8), a9 = start(9), a10 = start(10), a11 = start(11);
  for (int i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, factor, term);
    a1 = hn::MulAdd(a1, factor, term);
    a2 = hn::MulAdd(a2, factor, term);
    a3 = hn::MulAdd(a3, factor, term);
    a4 = hn::MulAdd(a4, factor, term);
    a5 = hn::MulAdd(a5, factor, term);
    a6 = hn::MulAdd(a6, factor, term);
    a7 = hn::MulAdd(a7, factor, term);
    a8 = hn::MulAdd(a8, factor, term);
    a9 = hn::MulAdd(a9, factor, term);
    a10 = hn::MulAdd(a10, factor, term);
    a11 = hn::MulAdd(a11, factor, term);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)),
              hn::Add(hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)), hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))));
  *sink = hn::GetLane(hn::SumOfLanes(tag, sum));
  return 2.0 * 12 * rounds * static_cast<double>(hn::Lanes(tag));
}

}  // namespace flash_kda::cli::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flash_kda::cli {

HWY_EXPORT(multiply_add);

namespace {

/// Operations a second of all threads together, over a time that begins before the first and ends after the last.
double measure_once(int threads, std::chrono::duration<double> time) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  std::vector<double> operations(static_cast<size_t>(threads));
  const auto work = [&](double& sum) {
    float sink = 1;
    while (Clock::now() - begin < time) sum += HWY_DYNAMIC_DISPATCH(multiply_add)(20'000, &sink);
    if (sink == 0) sum = 0;
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < operations.size(); ++i) others.emplace_back(work, std::ref(operations[i]));
  work(operations[0]);
  for (std::thread& other : others) other.join();
  return std::accumulate(operations.begin(), operations.end(), 0.0) /
         std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

double measure_fp32_peak(int threads) {
  // Whatever else the machine does only takes from a measurement, so the best is nearest to the peak.
  double best = 0;
  for (int i = 0; i < 10; ++i) best = std::max(best, measure_once(std::max(threads, 1), std::chrono::milliseconds(40)));
  return best;
}

}  // namespace flash_kda::cli
#endif

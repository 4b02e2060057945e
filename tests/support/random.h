// Counter-based random numbers: element i of stream s under a seed is a pure function of the three, so a test's inputs
// do not depend on the order in which they are made, on their memory layout, or on the machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace flash_kda::test {

class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : key_(mix(mix(seed) + stream)) {}

  /// Uniform in (0, 1).
  double uniform(uint64_t i) const { return (static_cast<double>(mix(key_ + i) >> 11) + 0.5) * 0x1p-53; }

  /// Standard normal (Box-Muller).
  double normal(uint64_t i) const {
    return std::sqrt(-2.0 * std::log(uniform(2 * i))) * std::cos(2.0 * std::numbers::pi * uniform(2 * i + 1));
  }

 private:
  /// The finaliser of SplitMix64 after one golden-ratio step.
  static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
  }

  uint64_t key_;
};

}  // namespace flash_kda::test

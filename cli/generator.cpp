#include "cli/generator.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "common/float_types.h"

namespace flash_kda::cli {
namespace {

/// SplitMix64's mixing function: a bijection of 64 bits.
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/// A counter-based generator: number i is a function of seed, stream and i alone, so that tensors can be filled in any
/// order. Only whole-number arithmetic, and single floating-point operations, which every machine rounds alike.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : key_(mix(mix(seed + kStep) + stream * kStep)) {}

  /// Uniform in [first, last).
  float uniform(int64_t i, float first, float last) const {
    return first + (last - first) * (static_cast<float>(bits(2 * i) >> 40) * 0x1p-24F);
  }

  /// Nearly standard normal: the sum of eight uniform numbers of 16 bits, at most 4.9 in magnitude.
  float normal(int64_t i) const {
    int32_t sum = 0;
    for (uint64_t word : {bits(2 * i), bits(2 * i + 1)})
      for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int32_t>(word >> shift & 0xffff);
    constexpr float kHalfDeviation = 0.5F / 53509.88F;  // of the sum: 2^16 * sqrt(8 / 12) = 53509.88
    return static_cast<float>(2 * sum - 8 * 65535) * kHalfDeviation;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15U;
  uint64_t bits(int64_t i) const { return mix(key_ + (static_cast<uint64_t>(i) + 1) * kStep); }
  uint64_t key_;
};

/// One stream a tensor, plus the common directions of the keys. The numbers are part of what a seed means.
enum Stream : uint64_t { kQ, kK, kV, kG, kBeta, kALog, kDtBias, kInitialState, kCommonKey };

/// value(i) for every element i in row-major order.
template <typename Value>
io::Tensor fill(flash_kda_dtype dtype, std::vector<int64_t> shape, const Value& value) {
  io::Tensor tensor(dtype, std::move(shape));
  const int64_t elements = tensor.elements();
#pragma omp parallel for
  for (int64_t i = 0; i < elements; ++i) store_element(tensor.data.data(), dtype, i, static_cast<double>(value(i)));
  return tensor;
}

io::Tensor prefix_sums(const std::vector<int64_t>& lengths, int64_t total) {
  const bool wide = total > std::numeric_limits<int32_t>::max();
  io::Tensor tensor(wide ? FLASH_KDA_I64 : FLASH_KDA_I32, {static_cast<int64_t>(lengths.size()) + 1});
  int64_t sum = 0;
  for (size_t n = 0; n <= lengths.size(); ++n) {
    if (wide)
      reinterpret_cast<int64_t*>(tensor.data.data())[n] = sum;
    else
      reinterpret_cast<int32_t*>(tensor.data.data())[n] = static_cast<int32_t>(sum);
    if (n < lengths.size()) sum += lengths[n];
  }
  return tensor;
}

}  // namespace

const std::vector<Family>& families() {
  constexpr flash_kda_gate kBounded = FLASH_KDA_GATE_BOUNDED, kSoftplus = FLASH_KDA_GATE_SOFTPLUS;
  // name, description, gate, g, beta, A_log, dt_bias, keys
  static const std::vector<Family> rows{
      {"F1", "random: A_log, dt_bias in 0..1", kBounded, 0, 1, 0, 1, 0, 1, 0, 1, false, 1},
      {"F2", "g = -4 + z/2", kBounded, -4, 0.5F, 0, 1, 0, 0, 0, 0, false, 1},
      {"F3", "slow: g = -8 + z/2", kBounded, -8, 0.5F, 0, 1, 0, 0, 0, 0, false, 1},
      {"F4", "slow, beta = b - 4", kBounded, -8, 0.5F, -4, 1, 0, 0, 0, 0, false, 1},
      {"F5", "mixed: dt_bias in -8..8", kBounded, 0, 0.5F, 0, 1, 0, 0, -8, 8, false, 1},
      {"F6", "nearly parallel keys, slow, beta = b + 3", kBounded, -9, 0.5F, 3, 1, 0, 0, 0, 0, true, 0.3F},
      {"F7", "one key for all tokens, g = -12, beta = 8", kBounded, -12, 0, 8, 0, 0, 0, 0, 0, true, 0},
      {"F8", "constant g = -8, beta = b - 4", kBounded, -8, 0, -4, 1, 0, 0, 0, 0, false, 1},
      // exp(A_log) in 1..16, softplus(dt_bias) in 0.001..0.1: how such layers are initialised
      {"softplus", "softplus gate as initialised", kSoftplus, 0, 1, 0, 1, 0, 2.7725887F, -6.9072552F, -2.2521685F,
       false, 1},
  };
  return rows;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  return names;
}

const Family& family_of(const std::string& name) {
  for (const Family& family : families())
    if (name == family.name) return family;
  throw Error(FLASH_KDA_ERROR_INTERNAL, "no such family: " + name);
}

Problem generate(const GeneratorOptions& options) {
  const Family& family = family_of(options.family);
  const Shape& shape = options.shape;
  const auto random = [&](Stream stream) { return Random(options.seed, stream); };
  const auto normal = [&](Stream stream, float mean, float spread) {
    return [=, numbers = random(stream)](int64_t i) { return mean + spread * numbers.normal(i); };
  };
  const auto uniform = [&](Stream stream, float first, float last) {
    return [=, numbers = random(stream)](int64_t i) { return numbers.uniform(i, first, last); };
  };
  // The direction is a function of (head, channel), which repeat every H * K elements.
  const auto keys = [&](Stream stream) {
    return [=, noise = random(stream), common = random(kCommonKey), row = shape.H * shape.K](int64_t i) {
      const float spread = family.key_spread == 0 ? 0 : family.key_spread * noise.normal(i);
      return family.common_key ? common.normal(i % row) + spread : spread;
    };
  };

  Problem problem;
  problem.origin = fmt::format("family {}", family.name);
  auto& tensors = problem.tensors;
  tensors["q"] = fill(options.dtype, {1, shape.T, shape.H, shape.K}, keys(kQ));
  tensors["k"] = fill(options.dtype, {1, shape.T, shape.H, shape.K}, keys(kK));
  tensors["v"] = fill(options.dtype, {1, shape.T, shape.HV, shape.V}, normal(kV, 0, 1));
  tensors["g"] = fill(options.dtype, {1, shape.T, shape.HV, shape.K},
                      normal(kG, family.gate_mean + options.gate_strength, family.gate_spread));
  tensors["beta"] = fill(options.dtype, {1, shape.T, shape.HV}, normal(kBeta, family.beta_mean, family.beta_spread));
  tensors["A_log"] = fill(FLASH_KDA_F32, {shape.HV}, uniform(kALog, family.A_log_first, family.A_log_last));
  tensors["dt_bias"] =
      fill(FLASH_KDA_F32, {shape.HV, shape.K}, uniform(kDtBias, family.dt_bias_first, family.dt_bias_last));
  if (!shape.lengths.empty()) tensors["cu_seqlens"] = prefix_sums(shape.lengths, shape.T);
  if (options.initial_state_dtype)
    tensors["initial_state"] = fill(*options.initial_state_dtype, {shape.sequences(), shape.HV, shape.V, shape.K},
                                    normal(kInitialState, 0, 1));
  for (const auto& [name, gate] : gates())
    if (gate == family.gate) problem.text["gate"] = name;
  problem.text["family"] = family.name;
  return problem;
}

}  // namespace flash_kda::cli

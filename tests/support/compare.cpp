#include "support/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "api/params.h"
#include "common/float_types.h"

namespace flash_kda::test {
namespace {

flash_kda_dtype dtype_of(const flash_kda_tensor& t) { return static_cast<flash_kda_dtype>(t.dtype); }

const unsigned char* bytes_of(const flash_kda_tensor& t, int64_t offset) {
  return static_cast<const unsigned char*>(t.data) + offset * size_of(dtype_of(t));
}

bool is_poison(const flash_kda_tensor& t, int64_t offset) {
  const unsigned char* bytes = bytes_of(t, offset);
  return std::all_of(bytes, bytes + size_of(dtype_of(t)), [](unsigned char byte) { return byte == kPoison; });
}

bool same_bits(const flash_kda_tensor& a, int64_t a_offset, const flash_kda_tensor& b, int64_t b_offset) {
  return std::memcmp(bytes_of(a, a_offset), bytes_of(b, b_offset), static_cast<size_t>(size_of(dtype_of(a)))) == 0;
}

/// Half a unit in the last place of a stored bf16 or fp16 value; 0 for the types whose rounding the tolerance covers.
double half_ulp(flash_kda_dtype dtype, double stored) {
  const int digits = dtype == FLASH_KDA_BF16 ? 8 : 11, lowest = dtype == FLASH_KDA_BF16 ? -126 : -14;
  if (dtype != FLASH_KDA_BF16 && dtype != FLASH_KDA_F16) return 0;
  const int exponent = stored == 0 ? lowest : std::max(std::ilogb(stored), lowest);
  return std::ldexp(0.5, exponent - (digits - 1));
}

struct Norms {
  double error = 0, expected = 0;  // squares
  int64_t elements = 0;

  /// Where nothing but zeros is expected, any error is infinitely large.
  double relative() const {
    if (error == 0) return 0;
    return expected == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / expected);
  }
};

}  // namespace

Difference compare(const flash_kda_tensor& actual, const flash_kda_tensor& before, const flash_kda_tensor& expected,
                   int head_dimension) {
  constexpr int64_t kSmallestGroup = 64;
  Difference result;
  Norms all;
  std::map<std::pair<int64_t, int64_t>, Norms> groups;
  auto group = groups.end();  // that of the last element: neighbours mostly share it
  double worst = -1;
  for_each_element(expected, [&](const int64_t* at, int64_t expected_offset) {
    const int64_t offset = offset_of(actual, at);
    const auto note = [&](double a, double e) {
      std::copy(at, at + expected.rank, result.worst_at.begin());
      result.worst_actual = a;
      result.worst_expected = e;
    };
    const double a = load_element(actual.data, dtype_of(actual), offset);
    if (is_poison(expected, expected_offset)) {
      if (!same_bits(actual, offset, before, offset) && result.touched++ == 0) {
        note(a, load_element(before.data, dtype_of(before), offset));
        worst = std::numeric_limits<double>::infinity();
      }
      return;
    }
    const double e = load_element(expected.data, dtype_of(expected), expected_offset);
    if (!std::isfinite(a) || !std::isfinite(e)) {
      const bool same = std::isnan(e) ? std::isnan(a) : a == e;
      if (!same && result.not_finite++ == 0) {
        note(a, e);
        worst = std::numeric_limits<double>::infinity();
      }
      return;
    }
    const double error = std::max(0.0, std::fabs(a - e) - half_ulp(dtype_of(actual), a));
    const std::pair key{at[0], at[head_dimension]};
    if (group == groups.end() || group->first != key) group = groups.try_emplace(key).first;
    for (Norms* norms : {&all, &group->second}) {
      norms->error += error * error;
      norms->expected += e * e;
      ++norms->elements;
    }
    if (error > worst) {
      worst = error;
      note(a, e);
    }
  });
  result.elements = all.elements;
  result.relative = all.relative();
  for (const auto& [key, norms] : groups)
    if (norms.elements >= kSmallestGroup) result.worst_group = std::max(result.worst_group, norms.relative());
  if (std::isfinite(worst) && worst > 0)
    result.worst_error = worst / std::sqrt(all.expected / static_cast<double>(all.elements));
  return result;
}

std::string to_string(const Difference& d, int rank) {
  return fmt::format(
      "relative error {:.2e}, worst head {:.2e}, {} elements; {} not finite, {} touched; worst element [{}]: got "
      "{:.9g}, expected "
      "{:.9g} ({:.1e} of the root mean square)",
      d.relative, d.worst_group, d.elements, d.not_finite, d.touched,
      fmt::join(d.worst_at.begin(), d.worst_at.begin() + rank, ", "), d.worst_actual, d.worst_expected, d.worst_error);
}

std::string bitwise_difference(const flash_kda_tensor& actual, const flash_kda_tensor& expected) {
  if (actual.dtype != expected.dtype || actual.rank != expected.rank ||
      !std::equal(actual.shape, actual.shape + actual.rank, expected.shape))
    return "different shapes or types";
  int64_t differing = 0;
  std::string first;
  for_each_element(expected, [&](const int64_t* at, int64_t expected_offset) {
    const int64_t offset = offset_of(actual, at);
    if (same_bits(actual, offset, expected, expected_offset)) return;
    if (differing++ == 0)
      first = fmt::format("[{}]: got {:.17g}, expected {:.17g}", fmt::join(at, at + expected.rank, ", "),
                          load_element(actual.data, dtype_of(actual), offset),
                          load_element(expected.data, dtype_of(expected), expected_offset));
  });
  return differing == 0 ? "" : fmt::format("{} elements differ, the first at {}", differing, first);
}

Difference difference(const Problem& actual, const Problem& oracle, const std::string& name) {
  const Buffer& got = *actual.find(name);
  const int head_dimension = got.argument == &flash_kda_forward_args::out ? 2 : 1;
  return compare(got.tensor, actual.before(got), oracle.tensor(name), head_dimension);
}

std::string faults(const Problem& actual, const Problem& oracle, double tolerance) {
  std::string text = actual.stray_writes();
  for (const Buffer& buffer : oracle.buffers()) {
    if (buffer.role != Role::kOutput) continue;
    const Difference d = difference(actual, oracle, buffer.name);
    if (!d.within(tolerance))
      text += fmt::format("{}{}: {}; accepted is {:.1e}", text.empty() ? "" : "\n", buffer.name,
                          to_string(d, buffer.tensor.rank), tolerance);
  }
  return text;
}

std::string bitwise_faults(const Problem& actual, const Problem& expected) {
  std::string text;
  for (const Buffer& buffer : expected.buffers()) {
    if (buffer.role != Role::kOutput) continue;
    const std::string difference = bitwise_difference(actual.find(buffer.name)->tensor, buffer.tensor);
    if (!difference.empty()) text += fmt::format("{}{}: {}", text.empty() ? "" : "\n", buffer.name, difference);
  }
  return text;
}

}  // namespace flash_kda::test

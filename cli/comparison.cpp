#include "cli/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/float_types.h"

namespace flash_kda::cli {
namespace {

double rounded_to(flash_kda_dtype dtype, double value) {
  double storage = 0;
  store_element(&storage, dtype, 0, value);
  return load_element(&storage, dtype, 0);
}

std::vector<int64_t> coordinates(const std::vector<int64_t>& shape, int64_t i) {
  std::vector<int64_t> at(shape.size());
  for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at[d] = i % shape[d];
  return at;
}

double root_ratio(double numerator, double denominator) {
  if (numerator <= 0) return 0;
  return denominator > 0 ? std::sqrt(numerator / denominator) : std::numeric_limits<double>::infinity();
}

}  // namespace

Comparison compare(const io::Tensor& result, const io::Tensor& reference) {
  Comparison c;
  c.elements = result.elements();
  double norm = 0, difference = 0, beyond = 0, largest = 0;
  int64_t worst = 0;
  for (int64_t i = 0; i < c.elements; ++i) {
    const double got = load_element(result.data.data(), result.dtype, i);
    const double exact = load_element(reference.data.data(), reference.dtype, i);
    const double rounded = rounded_to(result.dtype, exact);
    c.nan += std::isnan(got);
    c.inf += std::isinf(got);
    if (!std::isfinite(got) || !std::isfinite(rounded)) {
      c.mismatched += std::isfinite(got) != std::isfinite(rounded);
      continue;
    }
    const double d = std::fabs(got - exact), r = rounded - exact;
    norm += exact * exact;
    difference += d * d;
    beyond += d * d - r * r;
    if (d > largest) {
      largest = d;
      worst = i;
    }
  }
  c.error = root_ratio(difference, norm);
  c.error_beyond_rounding = root_ratio(beyond, norm);
  if (largest > 0) {
    c.worst = coordinates(result.shape, worst);
    c.worst_result = load_element(result.data.data(), result.dtype, worst);
    c.worst_reference = load_element(reference.data.data(), reference.dtype, worst);
  }
  return c;
}

}  // namespace flash_kda::cli

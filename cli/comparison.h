// A result against the fp64 reference.
#pragma once

#include <cstdint>
#include <vector>

#include "io/safetensors.h"

namespace flash_kda::cli {

struct Comparison {
  /// Relative Frobenius error, ||result - reference|| / ||reference||, over the elements that are finite in both.
  double error = 0;
  /// The same without what the rounding of the result's type alone makes: sqrt(||result - reference||^2 - ||rounded
  /// reference - reference||^2) / ||reference||. No element counts negative, since none of its type is nearer to the
  /// reference than the rounded one; and the two parts are independent, so that their squares add. It does not depend
  /// on the result's type: this is what a tolerance is for.
  double error_beyond_rounding = 0;

  /// The element with the largest absolute difference; empty if there is no difference.
  std::vector<int64_t> worst;
  double worst_result = 0;
  double worst_reference = 0;

  int64_t elements = 0;
  int64_t nan = 0;  ///< in the result
  int64_t inf = 0;  ///< in the result
  /// Elements that are finite in one of the two alone, the reference rounded to the result's type. NaN and Inf count as
  /// one: whether a sum of infinities is the one or the other depends on the order of summation.
  int64_t mismatched = 0;

  bool within(double tolerance) const { return mismatched == 0 && error_beyond_rounding <= tolerance; }
};

/// `reference` is float64 and of the result's shape.
Comparison compare(const io::Tensor& result, const io::Tensor& reference);

}  // namespace flash_kda::cli

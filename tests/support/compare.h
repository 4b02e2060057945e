// Comparators: a tensor against the fp64 recurrence, and bit by bit.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "support/problem.h"

namespace flash_kda::test {

/// What separates a computed tensor from the right one.
///
/// Storing a value in bf16 or fp16 moves it by at most half a unit in the last place of what is stored. Of each
/// element's error only the part beyond that half unit counts, so `relative` measures the computation alone and the
/// same fp32 bar holds for every type, element by element: a value rounded twice or truncated shows up, where a bar
/// wide enough for the type would hide it. fp32 and fp64 get no such allowance.
struct Difference {
  int64_t elements = 0;    ///< compared as numbers
  int64_t not_finite = 0;  ///< NaN or infinity on one side, and not the same on the other; not in the norms
  int64_t touched = 0;     ///< the oracle left the element alone, the call did not
  double relative = 0;     ///< |error| / |expected|, Frobenius, over the tensor
  double worst_group = 0;  ///< the same over one head of `out`, or one head of one state; groups of 64 elements or more
  double worst_error = 0;  ///< of one element, relative to the root mean square of the expected tensor
  std::array<int64_t, FLASH_KDA_MAX_RANK>
      worst_at{};  ///< its coordinates; of the first fault if touched or not_finite > 0
  double worst_actual = 0;
  double worst_expected = 0;

  bool within(double tolerance) const {
    return not_finite == 0 && touched == 0 && relative <= tolerance && worst_group <= tolerance;
  }
};

/// `expected` holds fp64 and has the shape of `actual`; elements of it that are still poisoned must be in `actual` what
/// they were in `before`. `head_dimension`: the one that counts heads.
Difference compare(const flash_kda_tensor& actual, const flash_kda_tensor& before, const flash_kda_tensor& expected,
                   int head_dimension);
std::string to_string(const Difference& d, int rank);

/// Same shape and type, element for element the same bits; otherwise how many differ and the first with its
/// coordinates. "" if equal.
std::string bitwise_difference(const flash_kda_tensor& actual, const flash_kda_tensor& expected);

/// Output `name` of `actual` against that of `oracle`, made from oracle_case of the case of `actual`.
Difference difference(const Problem& actual, const Problem& oracle, const std::string& name);

/// Every output of `actual` against that of `oracle`, and stray writes. "" if all
/// is well.
std::string faults(const Problem& actual, const Problem& oracle, double tolerance);

/// Every output of two problems of the same case, bit by bit. "" if equal.
std::string bitwise_faults(const Problem& actual, const Problem& expected);

}  // namespace flash_kda::test

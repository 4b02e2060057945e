// Vectors, elementary functions and lane shuffles, once per target.
//
// All functions take and return full vectors of fp32. NaN in gives NaN out, lane by lane.
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

#if defined(FLASH_KDA_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASH_KDA_CPU_VECTOR_MATH_INL_H_
#undef FLASH_KDA_CPU_VECTOR_MATH_INL_H_
#else
#define FLASH_KDA_CPU_VECTOR_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace flash_kda::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;
inline constexpr size_t kLanes = hn::MaxLanes(Tag());

HWY_INLINE Vector load(const float* p) { return hn::Load(Tag(), p); }
HWY_INLINE void store(Vector x, float* p) { hn::Store(x, Tag(), p); }
HWY_INLINE Vector set(float x) { return hn::Set(Tag(), x); }

/// 2^n * 2^f for integral n in [-127, 128] and |f| <= 0.5; n = -127 gives 0 and n = 128 gives infinity.
/// The polynomial is 1 + f * q(f) with q a minimax fit of (2^f - 1) / f: 2e-9 relative, so the rounding of the last
/// step rules.
HWY_INLINE Vector exp2_of_parts(Vector n, Vector f) {
  Vector q = set(1.53531509111e-4F);
  q = hn::MulAdd(q, f, set(1.33991335998e-3F));
  q = hn::MulAdd(q, f, set(9.61843986733e-3F));
  q = hn::MulAdd(q, f, set(5.55033185075e-2F));
  q = hn::MulAdd(q, f, set(2.40226478798e-1F));
  q = hn::MulAdd(q, f, set(6.93147203118e-1F));
  const hn::RebindToSigned<Tag> integers;
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(integers, n), hn::Set(integers, 127)));
  return hn::Mul(hn::MulAdd(q, f, set(1.0F)), hn::BitCast(Tag(), exponent));
}

/// x limited to [low, high]; comparisons with NaN are false, so NaN passes through.
HWY_INLINE Vector limit(Vector x, float low, float high) {
  x = hn::IfThenElse(hn::Lt(x, set(low)), set(low), x);
  return hn::IfThenElse(hn::Gt(x, set(high)), set(high), x);
}

/// 2^x within 1 ulp; 0 below about 2^-127, infinity above 2^127.5.
HWY_INLINE Vector exp2(Vector x) {
  x = limit(x, -127.0F, 128.0F);
  const Vector n = hn::Round(x);
  return exp2_of_parts(n, hn::Sub(x, n));
}

/// e^x within 2 ulp; 0 and infinity as for exp2. log2(e) is split in two, or the product's rounding would grow with x.
HWY_INLINE Vector exp(Vector x) {
  x = limit(x, -88.02F, 88.72F);
  const Vector n = hn::Round(hn::Mul(x, set(1.44269502F)));
  const Vector f = hn::MulAdd(x, set(1.92596299e-8F), hn::MulSub(x, set(1.44269502F), n));
  return exp2_of_parts(n, f);
}

/// 1 / (1 + e^-x): relatively accurate for every x, unlike forms through tanh.
HWY_INLINE Vector sigmoid(Vector x) {
  const Vector one = set(1.0F);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

/// log(1 + t) for t in [0, 1], relatively accurate down to t = 0: 2 atanh(s) with s = t / (2 + t) <= 1/3.
HWY_INLINE Vector log1p(Vector t) {
  const Vector s = hn::Div(t, hn::Add(set(2.0F), t));
  const Vector y = hn::Mul(s, s);
  Vector r = set(1.40123376172e-1F);
  r = hn::MulAdd(r, y, set(1.39995437059e-1F));
  r = hn::MulAdd(r, y, set(2.00108516381e-1F));
  r = hn::MulAdd(r, y, set(3.33332065151e-1F));
  const Vector twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(twice, y), r, twice);
}

/// log(1 + e^x), relatively accurate for very negative x and without overflow for large x.
HWY_INLINE Vector softplus(Vector x) { return hn::Add(hn::Max(x, hn::Zero(Tag())), log1p(exp(hn::Neg(hn::Abs(x))))); }

// Templates, because Highway's one-lane target has no such shuffles: they are looked up only where there is more than
// one lane.

/// The even (odd) lanes of `low`, then those of `high`.
template <typename V>
HWY_INLINE V even_lanes(V low, V high) {
  return ConcatEven(Tag(), high, low);
}
template <typename V>
HWY_INLINE V odd_lanes(V low, V high) {
  return ConcatOdd(Tag(), high, low);
}

/// One round of "even lanes, then odd lanes" over kLanes vectors read as one long array: element address bits rotate by
/// one. log2(kLanes) rounds exchange vector and lane index: a transposition.
HWY_INLINE void transpose(Vector* x) {
  if constexpr (kLanes > 1) {
    for (size_t round = 1; round < kLanes; round *= 2) {
      Vector next[kLanes];
      for (size_t i = 0; i < kLanes / 2; ++i) {
        next[i] = even_lanes(x[2 * i], x[2 * i + 1]);
        next[i + kLanes / 2] = odd_lanes(x[2 * i], x[2 * i + 1]);
      }
      for (size_t i = 0; i < kLanes; ++i) x[i] = next[i];
    }
  }
}

/// Lane i of the result is the sum over the lanes of the vector at x + i * kLanes; overwrites nothing.
HWY_INLINE Vector sums_of_lanes(const float* x) {
  Vector v[kLanes];
  for (size_t i = 0; i < kLanes; ++i) v[i] = load(x + i * kLanes);
  if constexpr (kLanes > 1) {
    for (size_t left = kLanes / 2; left > 0; left /= 2)
      for (size_t i = 0; i < left; ++i)
        v[i] = hn::Add(even_lanes(v[2 * i], v[2 * i + 1]), odd_lanes(v[2 * i], v[2 * i + 1]));
  }
  return v[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace flash_kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

// Rows of any floating-point type in and out of fp32, the gate, the norm: what the chunked and the recurrent kernel
// share, once per target.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "common/float_types.h"
#include "cpu/plan.h"
#include "cpu/tasks.h"
#include "cpu/vector/math-inl.h"
#include "cpu/vector/token_rows.h"

#if defined(FLASH_KDA_CPU_VECTOR_TOKENS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FLASH_KDA_CPU_VECTOR_TOKENS_INL_H_
#undef FLASH_KDA_CPU_VECTOR_TOKENS_INL_H_
#else
#define FLASH_KDA_CPU_VECTOR_TOKENS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace flash_kda::cpu {
namespace HWY_NAMESPACE {

/// Channels are handled in blocks of this many; rows are padded with zeros to a multiple of it.
inline constexpr size_t kChannelVectors = 4;
inline constexpr size_t kChannelBlock = kChannelVectors * kLanes;

/// Columns of V are handled in panels of two vectors.
inline constexpr size_t kPanel = 2 * kLanes;
static_assert(kValueBlock % kPanel == 0 && kRowStride % kLanes == 0);

constexpr size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

using WordTag = hn::RebindToUnsigned<Tag>;
using Word = hn::Vec<WordTag>;
using HalfWordTag = hn::Rebind<uint16_t, Tag>;

// fp16 by integer arithmetic: Highway 1.0 truncates and knows no infinities where it emulates the conversions.

HWY_INLINE Vector float_of_f16(Word x) {
  const WordTag d;
  const Word magnitude = hn::And(x, hn::Set(d, 0x7fff));
  // As fp32 bits the magnitude is 2^-112 times too small, subnormals included.
  Word bits = hn::BitCast(d, hn::Mul(hn::BitCast(Tag(), hn::ShiftLeft<13>(magnitude)), set(0x1p112F)));
  bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7bff)), hn::Or(bits, hn::Set(d, 0x7f800000)), bits);
  return hn::BitCast(Tag(), hn::Or(bits, hn::ShiftLeft<16>(hn::And(x, hn::Set(d, 0x8000)))));
}

/// Rounds to nearest even, overflows to infinity.
HWY_INLINE Word f16_of_float(Vector x) {
  const WordTag d;
  const Word bits = hn::BitCast(d, x), sign = hn::And(bits, hn::Set(d, 0x80000000)), magnitude = hn::Xor(bits, sign);
  const Word odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1));
  const Word normal = hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(d, (112U << 23) - 0xfff)), odd));
  // Adding 0.5 leaves the multiple of 2^-24 in the low bits.
  const Word subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(Tag(), magnitude), set(0.5F))), hn::Set(d, float_to_bits(0.5F)));
  const Word special =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7f800000)), hn::Set(d, 0x7e00), hn::Set(d, 0x7c00));
  Word result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, float_to_bits(0x1p-14F))), subnormal, normal);
  result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, float_to_bits(65536.0F))), result, special);
  return hn::Or(result, hn::ShiftRight<16>(sign));
}

/// Rounds to nearest even.
HWY_INLINE Word bf16_of_float(Vector x) {
  const WordTag d;
  const Word bits = hn::BitCast(d, x);
  const Word odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1));
  const Word rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(d, 0x7fff)), odd));
  const Word nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(d, 0x40));
  return hn::IfThenElse(hn::MaskFromVec(hn::BitCast(d, hn::VecFromMask(Tag(), hn::IsNaN(x)))), nan, rounded);
}

HWY_INLINE Word load_half_words(const uint16_t* p) { return hn::PromoteTo(WordTag(), hn::LoadU(HalfWordTag(), p)); }
HWY_INLINE void store_half_words(Word x, uint16_t* p) {
  hn::StoreU(hn::DemoteTo(HalfWordTag(), hn::BitCast(hn::RebindToSigned<Tag>(), x)), HalfWordTag(), p);
}

/// Elements [offset, offset + n) as fp32, then zeros up to `padded`, a multiple of kLanes. Reads nothing else.
inline void load_row(const void* data, flash_kda_dtype dtype, int64_t offset, size_t n, size_t padded, float* row) {
  size_t i = 0;
  if (dtype == FLASH_KDA_F32) {
    const float* source = static_cast<const float*>(data) + offset;
    for (; i + kLanes <= n; i += kLanes) store(hn::LoadU(Tag(), source + i), row + i);
  } else {
    const uint16_t* source = static_cast<const uint16_t*>(data) + offset;
    if (dtype == FLASH_KDA_BF16)
      for (; i + kLanes <= n; i += kLanes)
        store(hn::BitCast(Tag(), hn::ShiftLeft<16>(load_half_words(source + i))), row + i);
    else
      for (; i + kLanes <= n; i += kLanes) store(float_of_f16(load_half_words(source + i)), row + i);
  }
  for (; i < n; ++i) row[i] = static_cast<float>(load_element(data, dtype, offset + static_cast<int64_t>(i)));
  for (; i < padded; ++i) row[i] = 0;
}

/// The opposite: the first n of `row` to elements [offset, offset + n). Writes nothing else.
inline void store_row(const float* row, size_t n, void* data, flash_kda_dtype dtype, int64_t offset) {
  size_t i = 0;
  if (dtype == FLASH_KDA_F32) {
    float* target = static_cast<float*>(data) + offset;
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(load(row + i), Tag(), target + i);
  } else {
    uint16_t* target = static_cast<uint16_t*>(data) + offset;
    if (dtype == FLASH_KDA_BF16)
      for (; i + kLanes <= n; i += kLanes) store_half_words(bf16_of_float(load(row + i)), target + i);
    else
      for (; i + kLanes <= n; i += kLanes) store_half_words(f16_of_float(load(row + i)), target + i);
  }
  for (; i < n; ++i) store_element(data, dtype, offset + static_cast<int64_t>(i), static_cast<double>(row[i]));
}

/// row *= scale, or, with the L2 norm on, row *= scale / sqrt(|row|^2 + epsilon). `padded` is a multiple of kLanes.
inline void scale_row(float* row, size_t padded, bool l2norm, float scale) {
  float factor = scale;
  if (l2norm) {
    Vector sum = hn::Zero(Tag());
    for (size_t i = 0; i < padded; i += kLanes) {
      const Vector x = load(row + i);
      sum = hn::MulAdd(x, x, sum);
    }
    factor /= std::sqrt(hn::GetLane(hn::SumOfLanes(Tag(), sum)) + static_cast<float>(kNormEpsilon));
  }
  for (size_t i = 0; i < padded; i += kLanes) store(hn::Mul(load(row + i), set(factor)), row + i);
}

/// The constants of one head's gate, so that `log2_gate` yields log2 of the decay.
struct Gate {
  float inner = 1;  ///< bounded: exp(A_log)
  float outer = 0;  ///< bounded: lower_bound * log2(e); softplus: -exp(A_log) * log2(e); log: log2(e)
};

inline Gate gate_of(const Params& p, int h) {
  constexpr double kLog2E = 1.4426950408889634;
  // Clamped to fp32's finite range: infinity times the 0 of an underflown softplus or of g + dt_bias = 0 would be NaN.
  const auto finite = [](double x) { return static_cast<float>(std::min(x, static_cast<double>(FLT_MAX))); };
  const double factor = p.A_log == nullptr ? 1.0 : std::exp(static_cast<double>(p.A_log[h]));
  switch (p.gate) {
    case FLASH_KDA_GATE_BOUNDED:
      return {finite(factor), static_cast<float>(static_cast<double>(p.lower_bound) * kLog2E)};
    case FLASH_KDA_GATE_SOFTPLUS:
      return {1.0F, -finite(factor * kLog2E)};
    case FLASH_KDA_GATE_LOG:
      break;
  }
  return {1.0F, static_cast<float>(kLog2E)};
}

template <flash_kda_gate kForm>
HWY_INLINE Vector log2_gate(const Gate& gate, Vector g, Vector bias) {
  const Vector outer = set(gate.outer);
  if constexpr (kForm == FLASH_KDA_GATE_BOUNDED)
    return hn::Mul(outer, sigmoid(hn::Mul(set(gate.inner), hn::Add(g, bias))));
  if constexpr (kForm == FLASH_KDA_GATE_SOFTPLUS) return hn::Mul(outer, softplus(hn::Add(g, bias)));
  return hn::Mul(outer, g);
}

/// Fill `bias` with head h's row of dt_bias, zeros where there is none.
inline void load_bias(const Params& p, int h, size_t padded, float* bias) {
  if (p.dt_bias == nullptr)
    std::fill_n(bias, padded, 0.0F);
  else
    load_row(p.dt_bias, FLASH_KDA_F32, static_cast<int64_t>(h) * p.K, static_cast<size_t>(p.K), padded, bias);
}

/// Tokens [first, first + count) of the task's sequence, value columns [task.begin, task.end).
inline void load_tokens(const Params& p, const Task& task, int64_t first, int count, TokenRows& rows) {
  const auto K = static_cast<size_t>(p.K), channels = round_up(K, kChannelBlock);
  const auto values = static_cast<size_t>(task.end - task.begin);
  const int query_head = task.head / (p.HV / p.H);
  for (int i = 0; i < count; ++i) {
    const int64_t t = task.sequence.begin + first + i;
    const auto offset = [&](const TokenTensor& x, int head) { return token_offset(x, task.sequence.batch, t, head); };
    load_row(p.q.data, p.q.dtype, offset(p.q, query_head), K, channels, rows.q[i]);
    load_row(p.k.data, p.k.dtype, offset(p.k, query_head), K, channels, rows.k[i]);
    load_row(p.g.data, p.g.dtype, offset(p.g, task.head), K, channels, rows.decay[i]);
    load_row(p.v.data, p.v.dtype, offset(p.v, task.head) + task.begin, values, round_up(values, kPanel), rows.v[i]);
    scale_row(rows.q[i], channels, p.l2norm, p.scale);
    scale_row(rows.k[i], channels, p.l2norm, 1.0F);
    rows.beta[i] = static_cast<float>(load_element(p.beta.data, p.beta.dtype, offset(p.beta, task.head)));
  }
  std::fill(rows.beta + count, rows.beta + kMaxTokenRows, 0.0F);
  if (p.beta_form == FLASH_KDA_BETA_PROBABILITIES) return;
  const Vector factor = set(p.beta_form == FLASH_KDA_BETA_TWICE_SIGMOID ? 2.0F : 1.0F);
  for (size_t i = 0; i < kMaxTokenRows; i += kLanes)
    store(hn::Mul(factor, sigmoid(load(rows.beta + i))), rows.beta + i);
}

// Always inlined: GCC 12 takes a function that only prefetches for one without effect and drops its calls.

/// Ask for elements [offset, offset + n).
HWY_INLINE void prefetch_row(const TokenTensor& x, int64_t offset, int64_t n) {
  const int64_t size = size_of(x.dtype);
  const char* row = static_cast<const char*>(x.data) + offset * size;
  for (int64_t byte = 0; byte < n * size; byte += 64) __builtin_prefetch(row + byte, 0, 2);
}

/// Ask for the rows of one token, to be loaded a chunk later. With several heads a row's neighbours belong to other
/// heads, so the hardware's prefetchers see a new page for every row.
HWY_INLINE void prefetch_token(const Params& p, const Task& task, int64_t token) {
  if (token >= task.sequence.length) return;
  const int64_t batch = task.sequence.batch, t = task.sequence.begin + token;
  const int query_head = task.head / (p.HV / p.H);
  prefetch_row(p.q, token_offset(p.q, batch, t, query_head), p.K);
  prefetch_row(p.k, token_offset(p.k, batch, t, query_head), p.K);
  prefetch_row(p.g, token_offset(p.g, batch, t, task.head), p.K);
  prefetch_row(p.v, token_offset(p.v, batch, t, task.head) + task.begin, task.end - task.begin);
}

/// Zero outputs of all tokens of a padded row.
inline void store_zeros(const Params& p, const Task& task) {
  HWY_ALIGN const float zeros[kLanes] = {};
  for (int64_t t = 0; t < task.sequence.length; ++t)
    for (int v = task.begin; v < task.end; v += static_cast<int>(kLanes))
      store_row(zeros, std::min(kLanes, static_cast<size_t>(task.end - v)), p.out.data, p.out.dtype,
                token_offset(p.out, task.sequence.batch, task.sequence.begin + t, task.head) + v);
}

}  // namespace HWY_NAMESPACE
}  // namespace flash_kda::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

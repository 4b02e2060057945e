// The recurrence of docs/operator.md for one short sequence, one value head and a range of rows of S, which stay in the
// caller's [V, K] order: as many rows at a time as a vector has lanes, all tokens before the next rows, so that S is
// read and written once.
#include "cpu/recurrent/kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/vector/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/recurrent/kernel.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After the two headers above, which choose the target.
#include "cpu/vector/math-inl.h"
#include "cpu/vector/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flash_kda::cpu {
namespace HWY_NAMESPACE {
namespace {

static_assert(kLanes <= kMaxLanes && kMaxDecodeTokens <= static_cast<int>(kMaxTokenRows));

template <flash_kda_gate kForm>
void decays(const Gate& gate, int count, size_t channels, RecurrentScratch& s) {
  for (int i = 0; i < count; ++i)
    for (size_t c = 0; c < channels; c += kLanes) {
      float* row = s.rows.decay[i] + c;
      store(exp2(log2_gate<kForm>(gate, load(row), load(s.bias + c))), row);
    }
}

/// One token on kLanes rows of S; v [kLanes] becomes the output.
void advance(const TokenRows& rows, int token, size_t channels, float* v, RecurrentScratch& s) {
  const float *q = rows.q[token], *k = rows.k[token], *decay = rows.decay[token];
  for (size_t r = 0; r < kLanes; ++r) {
    Vector predicted = hn::Zero(Tag()), attended = hn::Zero(Tag());
    for (size_t c = 0; c < channels; c += kLanes) {
      const Vector x = hn::Mul(load(s.state[r] + c), load(decay + c));
      store(x, s.state[r] + c);
      predicted = hn::MulAdd(x, load(k + c), predicted);
      attended = hn::MulAdd(x, load(q + c), attended);
    }
    store(predicted, s.predicted + r * kLanes);
    store(attended, s.attended + r * kLanes);
  }
  Vector query_key = hn::Zero(Tag());
  for (size_t c = 0; c < channels; c += kLanes) query_key = hn::MulAdd(load(q + c), load(k + c), query_key);

  // S' q̄ = S q̄ + u <k̄, q̄>: the output needs no second pass over the new state.
  const Vector u = hn::Mul(set(rows.beta[token]), hn::Sub(load(v), sums_of_lanes(s.predicted)));
  store(hn::MulAdd(u, hn::SumOfLanes(Tag(), query_key), sums_of_lanes(s.attended)), v);
  store(u, s.u);
  for (size_t r = 0; r < kLanes; ++r) {
    const Vector factor = set(s.u[r]);
    for (size_t c = 0; c < channels; c += kLanes)
      store(hn::MulAdd(factor, load(k + c), load(s.state[r] + c)), s.state[r] + c);
  }
}

void run_recurrent_task(const Params& p, const Task& task, RecurrentScratch& s) {
  if (task.slots.padded) {
    store_zeros(p, task);
    return;
  }
  const auto K = static_cast<size_t>(p.K), channels = round_up(K, kChannelBlock);
  const auto values = static_cast<size_t>(task.end - task.begin);
  const int count = static_cast<int>(task.sequence.length);
  load_tokens(p, task, 0, count, s.rows);
  load_bias(p, task.head, channels, s.bias);
  const Gate gate = gate_of(p, task.head);
  switch (p.gate) {
    case FLASH_KDA_GATE_BOUNDED:
      decays<FLASH_KDA_GATE_BOUNDED>(gate, count, channels, s);
      break;
    case FLASH_KDA_GATE_SOFTPLUS:
      decays<FLASH_KDA_GATE_SOFTPLUS>(gate, count, channels, s);
      break;
    case FLASH_KDA_GATE_LOG:
      decays<FLASH_KDA_GATE_LOG>(gate, count, channels, s);
      break;
  }

  for (size_t first = 0; first < values; first += kLanes) {
    const size_t present = std::min(kLanes, values - first);
    const auto offset = [&](const StateTensor& x, int64_t slot, size_t r) {
      return state_offset(x, slot, task.head, task.begin + static_cast<int64_t>(first + r));
    };
    for (size_t r = 0; r < kLanes; ++r) {
      if (task.slots.read >= 0 && r < present)
        load_row(p.initial_state.data, p.initial_state.dtype, offset(p.initial_state, task.slots.read, r), K, channels,
                 s.state[r]);
      else
        std::fill_n(s.state[r], channels, 0.0F);
    }
    for (int i = 0; i < count; ++i) advance(s.rows, i, channels, s.rows.v[i] + first, s);
    if (task.slots.write >= 0)
      for (size_t r = 0; r < present; ++r)
        store_row(s.state[r], K, p.final_state.data, p.final_state.dtype, offset(p.final_state, task.slots.write, r));
  }
  for (int i = 0; i < count; ++i)
    store_row(s.rows.v[i], values, p.out.data, p.out.dtype,
              token_offset(p.out, task.sequence.batch, task.sequence.begin + i, task.head) + task.begin);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flash_kda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flash_kda::cpu {

RecurrentKernel recurrent_kernel(InstructionSet set) {
  static constexpr RecurrentKernel kKernels[] = {&HWY_STATIC_DISPATCH(run_recurrent_task),
                                                 HWY_CHOOSE_AVX2(run_recurrent_task),
                                                 HWY_CHOOSE_AVX3(run_recurrent_task)};
  return kKernels[static_cast<int>(set)];
}

}  // namespace flash_kda::cpu
#endif  // HWY_ONCE

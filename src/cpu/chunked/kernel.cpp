// The chunked form of docs/operator.md (R form, 16 tokens a chunk) for one sequence, one value head and a range of
// columns of V.
//
// Per chunk:
//   prepare   decays a_t; K~ and Q~ as rows times the running product of decays; e as 2^(sum of log2 gates)
//   products  A and P, and K̄end on the way
//   advance   per panel of V: [K~; Q~] S^T; U by forward substitution; O; S
//
// Range. A and P need k̄_j · 2^(G_i - G_j) for every pair j < i. Instead of two factors around an anchor, row j is
// carried along: z_j starts as k̄_j and is multiplied by a_i when it comes to row i. Every factor is a decay in [0, 1],
// so nothing overflows under any gate and underflow is the right answer; the work equals that of anchored products,
// whose upper triangle would be thrown away. After the last row z_j is K̄end_j. A product of at most 16 decays is off by
// a few ulp, once per token. The state's own decay, whose error would add up over chunks, is 2^(sum) instead.
#include "cpu/chunked/kernel.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cpu/vector/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/chunked/kernel.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After the two headers above, which choose the target.
#include "cpu/vector/math-inl.h"
#include "cpu/vector/tokens-inl.h"

HWY_BEFORE_NAMESPACE();
namespace flash_kda::cpu {
namespace HWY_NAMESPACE {
namespace {

/// Rows of a register tile: rows * 2 accumulators, 2 vectors of the panel and a broadcast must fit the register file.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr size_t kTileRows = 8;  // 32 registers
#else
inline constexpr size_t kTileRows = 4;
#endif
static_assert(kChunk % kTileRows == 0 && kChannelBlock % kTileRows == 0 && kChunk % kLanes == 0);
static_assert(static_cast<size_t>(kChunk) == kMaxTokenRows);

/// Fill rows.decay, total_decay and `decayed`. Rows from `count` to the end of the chunk become neutral: no keys, no
/// decay.
template <flash_kda_gate kForm>
void prepare(const Gate& gate, int count, size_t channels, ChunkedScratch& s) {
  const Vector zero = hn::Zero(Tag()), one = set(1.0F);
  for (size_t c = 0; c < channels; c += kLanes) {
    const Vector bias = load(s.bias + c);
    Vector log2_total = zero, product = one;
    for (int i = 0; i < count; ++i) {
      const Vector log2_decay = log2_gate<kForm>(gate, load(s.rows.decay[i] + c), bias);
      const Vector decay = exp2(log2_decay);
      log2_total = hn::Add(log2_total, log2_decay);
      product = hn::Mul(product, decay);
      store(decay, s.rows.decay[i] + c);
      store(hn::Mul(load(s.rows.k[i] + c), product), s.decayed[i] + c);
      store(hn::Mul(load(s.rows.q[i] + c), product), s.decayed[kChunk + i] + c);
    }
    for (int i = count; i < kChunk; ++i) {
      store(zero, s.rows.q[i] + c);
      store(zero, s.rows.k[i] + c);
      store(one, s.rows.decay[i] + c);
      store(zero, s.decayed[i] + c);
      store(zero, s.decayed[kChunk + i] + c);
    }
    store(exp2(log2_total), s.total_decay + c);
  }
}

/// A, P and K̄end of the rows below `count`, rounded up to even.
void products(int count, size_t channels, ChunkedScratch& s) {
  for (int j = 0; j < count; j += 2) {
    // Lane-wise partial sums for rows j and j + 1 (first index: A_j, P_j, A_j+1, P_j+1) against every row i.
    HWY_ALIGN float partial[4][kChunk][kLanes];
    for (auto& sums : partial)
      for (auto& sum : sums) store(hn::Zero(Tag()), sum);

    for (size_t c = 0; c < channels; c += kChannelBlock) {
      Vector z0[kChannelVectors], z1[kChannelVectors];
      Vector sum = load(partial[1][j]);
      for (size_t b = 0; b < kChannelVectors; ++b) {
        z0[b] = load(s.rows.k[j] + c + b * kLanes);
        sum = hn::MulAdd(load(s.rows.q[j] + c + b * kLanes), z0[b], sum);
      }
      store(sum, partial[1][j]);

      const int next = j + 1;
      Vector a0 = load(partial[0][next]), p0 = load(partial[1][next]), p1 = load(partial[3][next]);
      for (size_t b = 0; b < kChannelVectors; ++b) {
        const size_t d = c + b * kLanes;
        z0[b] = hn::Mul(z0[b], load(s.rows.decay[next] + d));
        z1[b] = load(s.rows.k[next] + d);
        const Vector q = load(s.rows.q[next] + d);
        a0 = hn::MulAdd(z1[b], z0[b], a0);
        p0 = hn::MulAdd(q, z0[b], p0);
        p1 = hn::MulAdd(q, z1[b], p1);
      }
      store(a0, partial[0][next]);
      store(p0, partial[1][next]);
      store(p1, partial[3][next]);

      for (int i = j + 2; i < count; ++i) {
        a0 = load(partial[0][i]);
        p0 = load(partial[1][i]);
        Vector a1 = load(partial[2][i]);
        p1 = load(partial[3][i]);
        for (size_t b = 0; b < kChannelVectors; ++b) {
          const size_t d = c + b * kLanes;
          const Vector decay = load(s.rows.decay[i] + d), k = load(s.rows.k[i] + d), q = load(s.rows.q[i] + d);
          z0[b] = hn::Mul(z0[b], decay);
          z1[b] = hn::Mul(z1[b], decay);
          a0 = hn::MulAdd(k, z0[b], a0);
          p0 = hn::MulAdd(q, z0[b], p0);
          a1 = hn::MulAdd(k, z1[b], a1);
          p1 = hn::MulAdd(q, z1[b], p1);
        }
        store(a0, partial[0][i]);
        store(p0, partial[1][i]);
        store(a1, partial[2][i]);
        store(p1, partial[3][i]);
      }
      for (size_t b = 0; b < kChannelVectors; ++b) {
        store(z0[b], s.k_end[j] + c + b * kLanes);
        store(z1[b], s.k_end[j + 1] + c + b * kLanes);
      }
    }

    for (size_t row = 0; row < 2; ++row)
      for (size_t i = 0; i < kChunk; i += kLanes) {
        store(hn::Mul(load(s.rows.beta + i), sums_of_lanes(partial[2 * row][i])), s.A[j + row] + i);
        store(sums_of_lanes(partial[2 * row + 1][i]), s.P[j + row] + i);
      }
  }
}

/// out[kTileRows][kPanel] = left[kTileRows rows][K] · panel[K][kPanel]
HWY_INLINE void multiply_tile(const float* left, const float* panel, size_t K, float* out) {
  Vector sums[kTileRows][2];
  for (auto& sum : sums) sum[0] = sum[1] = hn::Zero(Tag());
  for (size_t k = 0; k < K; ++k) {
    const Vector right0 = load(panel + k * kPanel), right1 = load(panel + k * kPanel + kLanes);
    for (size_t r = 0; r < kTileRows; ++r) {
      const Vector x = set(left[r * kRowStride + k]);
      sums[r][0] = hn::MulAdd(x, right0, sums[r][0]);
      sums[r][1] = hn::MulAdd(x, right1, sums[r][1]);
    }
  }
  for (size_t r = 0; r < kTileRows; ++r) {
    store(sums[r][0], out + r * kPanel);
    store(sums[r][1], out + r * kPanel + kLanes);
  }
}

/// panel[kTileRows channels][kPanel] = total_decay · panel + K̄endᵀ · U, for `count` tokens.
HWY_INLINE void update_tile(const float* total_decay, const float* k_end, const float* U, int count, float* panel) {
  Vector sums[kTileRows][2];
  for (size_t r = 0; r < kTileRows; ++r) {
    const Vector e = set(total_decay[r]);
    sums[r][0] = hn::Mul(e, load(panel + r * kPanel));
    sums[r][1] = hn::Mul(e, load(panel + r * kPanel + kLanes));
  }
  for (int j = 0; j < count; ++j) {
    const Vector u0 = load(U + static_cast<size_t>(j) * kPanel),
                 u1 = load(U + static_cast<size_t>(j) * kPanel + kLanes);
    for (size_t r = 0; r < kTileRows; ++r) {
      const Vector x = set(k_end[static_cast<size_t>(j) * kRowStride + r]);
      sums[r][0] = hn::MulAdd(x, u0, sums[r][0]);
      sums[r][1] = hn::MulAdd(x, u1, sums[r][1]);
    }
  }
  for (size_t r = 0; r < kTileRows; ++r) {
    store(sums[r][0], panel + r * kPanel);
    store(sums[r][1], panel + r * kPanel + kLanes);
  }
}

/// One panel of V over one chunk: the state in `panel` advances, the rows of v at `column` become the outputs.
void advance(int count, size_t K, size_t column, float* panel, ChunkedScratch& s) {
  // K~ Sᵀ, later U, in the upper half; Q~ Sᵀ in the lower.
  HWY_ALIGN float products[2 * kChunk][kPanel];
  for (size_t r = 0; r < std::size(products); r += kTileRows)
    if (r % kChunk < static_cast<size_t>(count)) multiply_tile(s.decayed[r], panel, K, products[r]);

  for (int i = 0; i < count; ++i) {
    float* v = s.rows.v[i] + column;
    const Vector beta = set(s.rows.beta[i]);
    Vector u0 = hn::Mul(beta, hn::Sub(load(v), load(products[i])));
    Vector u1 = hn::Mul(beta, hn::Sub(load(v + kLanes), load(products[i] + kLanes)));
    Vector o0 = load(products[kChunk + i]), o1 = load(products[kChunk + i] + kLanes);
    for (int j = 0; j < i; ++j) {
      const Vector a = set(s.A[j][i]), p = set(s.P[j][i]), x0 = load(products[j]), x1 = load(products[j] + kLanes);
      u0 = hn::NegMulAdd(a, x0, u0);
      u1 = hn::NegMulAdd(a, x1, u1);
      o0 = hn::MulAdd(p, x0, o0);
      o1 = hn::MulAdd(p, x1, o1);
    }
    store(u0, products[i]);
    store(u1, products[i] + kLanes);
    const Vector p = set(s.P[i][i]);
    store(hn::MulAdd(p, u0, o0), v);
    store(hn::MulAdd(p, u1, o1), v + kLanes);
  }

  const size_t channels = round_up(K, kTileRows);
  for (size_t k = 0; k < channels; k += kTileRows)
    update_tile(s.total_decay + k, s.k_end[0] + k, products[0], count, panel + k * kPanel);
}

/// The panels of S from `slot`, or zeros. Uses `decayed` as a buffer.
void load_state(const Params& p, const Task& task, ChunkedScratch& s) {
  const auto K = static_cast<size_t>(p.K), channels = round_up(K, kChannelBlock);
  const auto values = static_cast<size_t>(task.end - task.begin), padded = round_up(values, kPanel);
  const int64_t slot = task.slots.read;
  if (slot < 0) {
    std::fill_n(s.state, padded * channels, 0.0F);
    return;
  }
  const StateTensor& source = p.initial_state;
  for (size_t v = 0; v < padded; v += kLanes) {
    float* panel = s.state + v / kPanel * kPanel * channels + v % kPanel;
    for (size_t r = 0; r < kLanes; ++r)
      load_row(source.data, source.dtype,
               v + r < values ? state_offset(source, slot, task.head, task.begin + static_cast<int64_t>(v + r)) : 0,
               v + r < values ? K : 0, channels, s.decayed[r]);
    for (size_t c = 0; c < channels; c += kLanes) {
      Vector block[kLanes];
      for (size_t r = 0; r < kLanes; ++r) block[r] = load(s.decayed[r] + c);
      transpose(block);
      for (size_t r = 0; r < kLanes; ++r) store(block[r], panel + (c + r) * kPanel);
    }
  }
}

/// The panels of S to `slot` of `target`. Uses `decayed` as a buffer.
void store_state(const Params& p, const Task& task, const StateTensor& target, int64_t slot, ChunkedScratch& s) {
  const auto K = static_cast<size_t>(p.K), channels = round_up(K, kChannelBlock);
  const auto values = static_cast<size_t>(task.end - task.begin);
  for (size_t v = 0; v < values; v += kLanes) {
    const float* panel = s.state + v / kPanel * kPanel * channels + v % kPanel;
    for (size_t c = 0; c < channels; c += kLanes) {
      Vector block[kLanes];
      for (size_t r = 0; r < kLanes; ++r) block[r] = load(panel + (c + r) * kPanel);
      transpose(block);
      for (size_t r = 0; r < kLanes; ++r) store(block[r], s.decayed[r] + c);
    }
    for (size_t r = 0; r < std::min(kLanes, values - v); ++r)
      store_row(s.decayed[r], K, target.data, target.dtype,
                state_offset(target, slot, task.head, task.begin + static_cast<int64_t>(v + r)));
  }
}

void run_chunk(const Params& p, const Task& task, const Gate& gate, int64_t first, int count, ChunkedScratch& s) {
  const auto K = static_cast<size_t>(p.K), channels = round_up(K, kChannelBlock);
  const auto values = static_cast<size_t>(task.end - task.begin);
  load_tokens(p, task, first, count, s.rows);
  switch (p.gate) {
    case FLASH_KDA_GATE_BOUNDED:
      prepare<FLASH_KDA_GATE_BOUNDED>(gate, count, channels, s);
      break;
    case FLASH_KDA_GATE_SOFTPLUS:
      prepare<FLASH_KDA_GATE_SOFTPLUS>(gate, count, channels, s);
      break;
    case FLASH_KDA_GATE_LOG:
      prepare<FLASH_KDA_GATE_LOG>(gate, count, channels, s);
      break;
  }
  products(count, channels, s);
  int64_t next = 0;  // tokens of the next chunk that are on their way, spread over the panels
  for (size_t column = 0; column < values; column += kPanel) {
    for (; static_cast<size_t>(next) * values < (column + kPanel) * kChunk && next < kChunk; ++next)
      prefetch_token(p, task, first + kChunk + next);
    advance(count, K, column, s.state + column * channels, s);
  }
  for (int i = 0; i < count; ++i)
    store_row(s.rows.v[i], values, p.out.data, p.out.dtype,
              token_offset(p.out, task.sequence.batch, task.sequence.begin + first + i, task.head) + task.begin);
}

void run_chunked_task(const Params& p, const Task& task, std::span<const Checkpoint> checkpoints, ChunkedScratch& s) {
  if (task.slots.padded) {
    store_zeros(p, task);
    return;
  }
  const Gate gate = gate_of(p, task.head);
  load_bias(p, task.head, round_up(static_cast<size_t>(p.K), kChannelBlock), s.bias);
  load_state(p, task, s);
  for (int64_t done = 0;;) {
    for (; !checkpoints.empty() && checkpoints.front().offset == done; checkpoints = checkpoints.subspan(1))
      store_state(p, task, p.checkpoint_state, checkpoints.front().slot, s);
    if (done == task.sequence.length) break;
    const int count = static_cast<int>(std::min<int64_t>(task.sequence.length - done, kChunk));
    run_chunk(p, task, gate, done, count, s);
    done += count;
  }
  if (task.slots.write >= 0) store_state(p, task, p.final_state, task.slots.write, s);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace flash_kda::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace flash_kda::cpu {

ChunkedKernel chunked_kernel(InstructionSet set) {
  static constexpr ChunkedKernel kKernels[] = {&HWY_STATIC_DISPATCH(run_chunked_task),
                                               HWY_CHOOSE_AVX2(run_chunked_task), HWY_CHOOSE_AVX3(run_chunked_task)};
  return kKernels[static_cast<int>(set)];
}

}  // namespace flash_kda::cpu
#endif  // HWY_ONCE

// The scaling warps of the fused kernel: raw q, k, g become, in place, the tiles that the state reads, and Operands. A
// warp has the same slices of 8 channels in every chunk.
//
// All of a slice stays in fragments between loading and storing: a lane has one channel (its group) and eight tokens,
// four neighbours in either block, in pairs. So running sums are additions in the lane and two exchanges a block, in
// fp32, and what belongs to a channel is computed once a lane. Tokens meet only in |q|^2.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cuda/common/cluster.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

__device__ __forceinline__ GateConstants gate_constants(const Params& p, int head) {
  const float inverse = 1.0f / (-p.lower_bound * kLog2E);
  return {gate_slope(p, head), inverse, log2f(inverse)};
}

/// |log2| of the gate.
__device__ __forceinline__ float gate_magnitude(float g, float bias, const GateConstants& c) {
  return reciprocal_approx(exp2_approx(fmaf(g + bias, -c.slope, c.log_inverse_scale)) + c.inverse_scale);
}

/// Token of a chunk that member `member` has in half `odd` of fragment register r (block r / 2): four neighbours a
/// block, so ordered that the eight rows of a matrix lie in different banks.
constexpr int token_of(int r, int member, int odd) {
  return r / 2 * kBlock + 4 * member + 2 * ((r ^ member ^ member >> 1) & 1) + odd;
}

/// Exclusive sums of the pairs of a block's two registers over the tokens before them, and the sum of all.
struct RunningSum {
  float before[2], total;

  __device__ __forceinline__ RunningSum(float first, float second, int member) {
    const bool swapped = ((member ^ member >> 1) & 1) == 1;  // the second register's tokens come first
    const float own = first + second;
    const float neighbour = __shfl_xor_sync(0xffffffffu, own, 1);
    const float pair = own + neighbour;
    const float other = __shfl_xor_sync(0xffffffffu, pair, 2);
    total = pair + other;
    const float start = (member % 2 == 1 ? neighbour : 0.0f) + (member >= 2 ? other : 0.0f);
    before[0] = start + (swapped ? second : 0.0f);
    before[1] = start + (swapped ? 0.0f : first);
  }
};

/// Sums of q^2 over the channels of a warp's slices. Lanes of a member share its tokens; every exchange between groups
/// halves the tokens that a lane is left with. In steps, so that other work stands between the exchanges.
struct SquareSum {
  float sum[8] = {};  ///< [2 * register + odd], fewer and fewer

  __device__ __forceinline__ void add(const uint32_t (&q)[4]) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      sum[2 * r] = fmaf(low_bf16(q[r]), low_bf16(q[r]), sum[2 * r]);
      sum[2 * r + 1] = fmaf(high_bf16(q[r]), high_bf16(q[r]), sum[2 * r + 1]);
    }
  }
  /// Step 0, 1, 2: a lane keeps the second of every two where bit 4 << kStep of its index is set.
  template <int kStep>
  __device__ __forceinline__ void exchange(int lane) {
    constexpr int kBit = 4 << kStep;
    const bool set = (lane & kBit) != 0;
#pragma unroll
    for (int i = 0; i < 4 >> kStep; ++i) {
      const float given = __shfl_xor_sync(0xffffffffu, set ? sum[2 * i] : sum[2 * i + 1], kBit);
      sum[i] = (set ? sum[2 * i + 1] : sum[2 * i]) + given;
    }
  }
  /// The token whose sum a lane has after all steps.
  static __device__ __forceinline__ int token(int lane) {
    return token_of(2 * (lane / 16) + lane / 8 % 2, lane % 4, lane / 4 % 2);
  }
};

/// Gate, running sum and scaled tiles of 8 channels: piece `piece` of half `part`. kTail: only `valid` tokens belong to
/// the sequence. kLast: the warp's last slice, with which `squares` is complete and goes to `square_sums`.
/// wait_for_operands() is called before Operands are written.
template <bool kTail, bool kLast, typename Wait>
__device__ __forceinline__ void scale_slice(Stage& stage, Operands& operands, const GateConstants& gate, float bias,
                                            SquareSum& squares, float* square_sums, int part, int piece, int lane,
                                            int valid, const Wait& wait_for_operands) {
  const int group = lane / 4, member = lane % 4, channel = part * kHalf + piece * kSlice + group;
  // Where a lane points ldmatrix and stmatrix: row lane % 8 of matrix lane / 8.
  const auto offset = static_cast<uint32_t>(tile_offset(token_of(lane / 8, lane % 8 / 2, lane % 2), piece * kSlice));
  const uint32_t stage_place = shared_address(&stage) + offset, operands_place = shared_address(&operands) + offset;
  const uint32_t k_tile = stage_place + part * static_cast<uint32_t>(sizeof(KeysQueries));
  const uint32_t q_tile = k_tile + kHalfBytes;
  const uint32_t g_tile = stage_place + static_cast<uint32_t>(offsetof(Stage, g)) + part * kHalfBytes;
  const uint32_t first_down = operands_place + part * static_cast<uint32_t>(sizeof(OperandsHalf));
  const uint32_t second_k = first_down + static_cast<uint32_t>(offsetof(OperandsHalf, second_k));
  const uint32_t second_q = first_down + static_cast<uint32_t>(offsetof(OperandsHalf, second_q));

  uint32_t gates[4], q[4], k[4];
  load_matrix_x4_transposed(gates, g_tile);
  load_matrix_x4_transposed(q, q_tile);
  load_matrix_x4_transposed(k, k_tile);
  float x[4][2];  // magnitudes, then G + kShift (block 0) and G - end - kShift (block 1)
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    x[r][0] = gate_magnitude(low_bf16(gates[r]), bias, gate);
    x[r][1] = gate_magnitude(high_bf16(gates[r]), bias, gate);
    if constexpr (kTail) {  // behind the sequence nothing decays, and q and k never enter arithmetic
      const int token = token_of(r, member, 0);
      const uint32_t mask = token + 1 < valid ? 0xffffffffu : token < valid ? 0xffffu : 0;
      x[r][0] = token < valid ? x[r][0] : 0.0f;
      x[r][1] = token + 1 < valid ? x[r][1] : 0.0f;
      q[r] &= mask;
      k[r] &= mask;
    }
  }
  squares.add(q);
  if constexpr (kLast) squares.exchange<0>(lane);
  const RunningSum first(x[0][0] + x[0][1], x[1][0] + x[1][1], member);
  const RunningSum second(x[2][0] + x[2][1], x[3][0] + x[3][1], member);
  if constexpr (kLast) squares.exchange<1>(lane);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const RunningSum& sum = r < 2 ? first : second;
    x[r][0] = (r < 2 ? kShift : second.total - kShift) - sum.before[r % 2] - x[r][0];
    x[r][1] = x[r][0] - x[r][1];
  }
  // What takes keys of block 0 to the chunk's end, and what is anchored there to the chunk's start.
  const float whole = first.total + second.total;
  const float across = exp2_approx(2 * kShift - whole);
  const float from_start = across * (1.0f / kShiftFactor);
  if (member == 0) stage.decay[channel] = exp2_approx(-whole);
  wait_for_operands();

#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t row = block * kBlock * 128;
    uint32_t own_q[2], own_k[2], state_q[2], state_k[2], down[2], seen[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = 2 * block + i;
      const float up[2] = {exp2_approx(x[r][0]), exp2_approx(x[r][1])};
      const float raw_q[2] = {low_bf16(q[r]), high_bf16(q[r])}, raw_k[2] = {low_bf16(k[r]), high_bf16(k[r])};
      const float q0 = raw_q[0] * up[0], q1 = raw_q[1] * up[1], k0 = raw_k[0] * up[0], k1 = raw_k[1] * up[1];
      own_q[i] = pack_bf16(q0, q1);
      own_k[i] = pack_bf16(k0, k1);
      if (block == 1) {
        state_q[i] = pack_bf16(q0 * from_start, q1 * from_start);
        state_k[i] = pack_bf16(k0 * from_start, k1 * from_start);
      }
      const float down0 = raw_k[0] * exp2_approx(-x[r][0]), down1 = raw_k[1] * exp2_approx(-x[r][1]);
      down[i] = pack_bf16(down0, down1);
      if (block == 0) seen[i] = pack_bf16(down0 * across, down1 * across);
    }
    store_matrix_x2_transposed(q_tile + row, block == 0 ? own_q : state_q);
    store_matrix_x2_transposed(k_tile + row, block == 0 ? own_k : state_k);
    store_matrix_x2_transposed(g_tile + row, block == 0 ? seen : down);
    if (block == 0) {
      store_matrix_x2_transposed(first_down, down);
      if constexpr (kLast) squares.exchange<2>(lane);
    } else {
      store_matrix_x2_transposed(second_q, own_q);
      store_matrix_x2_transposed(second_k, own_k);
    }
  }
  if constexpr (kLast) square_sums[SquareSum::token(lane)] = squares.sum[0];
}

/// Gives the other CTA this one's half of a chunk, once all of it is scaled, and tells that what it gives is waited
/// for. Called by a warp.
__device__ __forceinline__ void share_half(const Task& task, Shared& shared, int chunk, int lane) {
  wait_barrier(&shared.half_scaled[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
  if (lane != 0) return;
  const int half = task.rank(), peer = 1 - half;
  const Stage& stage = shared.stage[chunk % kStages];
  uint64_t* const scaled = &shared.scaled[chunk % kStages];
  uint32_t total = 0;
  const auto give = [&](const void* part, uint32_t bytes) {
    copy_to_peer(part, bytes, scaled, peer);
    total += bytes;
  };
  give(&stage.half[half], sizeof(KeysQueries));
  give(stage.g + half * kHalfBytes, kHalfBytes);
  give(&shared.operands[chunk % kOperands].half[half], sizeof(OperandsHalf));
  give(stage.decay + half * kHalf, kHalf * sizeof(float));
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, scaled, total);
}

/// A scaling warp's part of every chunk of the task.
template <int kStateGroups>
__device__ __forceinline__ void scale_chunks(const Params& p, const Task& task, Shared& shared) {
  constexpr Roles kRoles{kStateGroups};
  constexpr int kOwn = kRoles.slices_per_warp();  // the same piece of both halves, or of the CTA's own
  constexpr bool kShared = kRoles.ctas() == 2;
  float bias[kOwn];  // of this lane's channels
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int thread = thread_of_cta(), part = kShared ? task.rank() : i;
    const int channel = part * kHalf + thread / 32 % 8 * kSlice + thread % 32 / 4;
    bias[i] = p.dt_bias == nullptr ? 0.0f : p.dt_bias[task.head * kHeadDim + channel];
  }
  const int chunks = task.chunks, last_valid = task.valid_tokens(chunks - 1);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_barrier(&shared.loaded[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
    Stage& stage = shared.stage[chunk % kStages];
    Operands& operands = shared.operands[chunk % kOperands];
    SquareSum squares;
    const auto scale = [&]<int kIndex>(std::integral_constant<int, kIndex>) {
      // Little is kept from slice to slice: registers are short.
      constexpr bool kLast = kIndex + 1 == kOwn;
      const int thread = thread_of_cta(), part = kShared ? task.rank() : kIndex, piece = thread / 32 % 8;
      const auto wait_for_operands = [&] {
        if (kIndex == 0 && chunk >= kOperands)  // by the other CTA too: what it was given has arrived
          wait_barrier(&shared.consumed[chunk % kOperands], static_cast<uint32_t>(chunk / kOperands - 1) & 1);
      };
      float* const square_sums = operands.half[kShared ? task.rank() : 0].query_square_sum[piece];
      if (chunk + 1 < chunks || last_valid == kChunk)
        scale_slice<false, kLast>(stage, operands, shared.gate, bias[kIndex], squares, square_sums, part, piece,
                                  thread % 32, kChunk, wait_for_operands);
      else
        scale_slice<true, kLast>(stage, operands, shared.gate, bias[kIndex], squares, square_sums, part, piece,
                                 thread % 32, last_valid, wait_for_operands);
    };
    scale(std::integral_constant<int, 0>());
    if constexpr (kOwn == 2) scale(std::integral_constant<int, 1>());
    const int thread = thread_of_cta();
    fence_to_async_proxy();
    if constexpr (kShared) {
      arrive_as_warp(&shared.half_scaled[chunk % kStages], thread % 32);
      if (thread / 32 % kRoles.scaling_warps() == chunk % kRoles.scaling_warps())  // each in turn
        share_half(task, shared, chunk, thread % 32);
    } else {
      arrive_as_warp(&shared.scaled[chunk % kStages], thread % 32);
    }
  }
}

}  // namespace flash_kda::cuda::fused

// The scaling warps of the fused kernel: raw q, k, g become, in place, the tiles that the state reads, and Operands. A
// warp has the same slices of 8 channels in every chunk.
//
// All of a slice stays in fragments between loading and storing: a lane has one channel (its group) and eight tokens,
// four neighbours in either block, in pairs. So running sums are additions in the lane and two exchanges a block, in
// fp32, and what belongs to a channel is computed once a lane. Tokens meet only in |q|^2.
#pragma once

#include <cstddef>
#include <type_traits>

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/task.cuh"

namespace flash_kda::cuda::fused {

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

/// Gate, running sum and scaled tiles of 8 channels: piece `piece` of halves kFirst ... kFirst + kCount - 1, whose
/// steps are side by side. bias: of the lane's channel of each. kTail: only `valid` tokens belong to the sequence. With
/// the last half `squares` is complete and goes to `square_sums`. wait_for_operands() is called before Operands are
/// written.
template <bool kTail, int kFirst, int kCount, typename Wait>
__device__ __forceinline__ void scale_slices(Stage& stage, Operands& operands, const GateConstants& gate,
                                             const float (&bias)[kSlicesPerWarp], SquareSum& squares,
                                             float* square_sums, int piece, int lane, int valid,
                                             const Wait& wait_for_operands) {
  constexpr bool kLast = kFirst + kCount == kSlicesPerWarp;
  const int group = lane / 4, member = lane % 4;
  // Where a lane points ldmatrix and stmatrix: row lane % 8 of matrix lane / 8.
  const auto offset = static_cast<uint32_t>(tile_offset(token_of(lane / 8, lane % 8 / 2, lane % 2), piece * kSlice));
  const uint32_t stage_place = shared_address(&stage) + offset, operands_place = shared_address(&operands) + offset;
  const auto k_tile = [&](int s) { return stage_place + (kFirst + s) * static_cast<uint32_t>(sizeof(KeysQueries)); };
  const auto q_tile = [&](int s) { return k_tile(s) + kHalfBytes; };
  const auto g_tile = [&](int s) {
    return stage_place + static_cast<uint32_t>(offsetof(Stage, g)) + (kFirst + s) * kHalfBytes;
  };
  const auto operand_tile = [&](int s, size_t tile) {
    return operands_place + (kFirst + s) * static_cast<uint32_t>(sizeof(OperandsHalf)) + static_cast<uint32_t>(tile);
  };

  uint32_t gates[kCount][4], q[kCount][4], k[kCount][4];
  float x[kCount][4][2];  // magnitudes, then G + kShift (block 0) and G - end - kShift (block 1)
  // What takes keys of block 0 to the chunk's end, and what is anchored there to the chunk's start.
  float across[kCount], from_start[kCount];
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    load_matrix_x4_transposed(gates[s], g_tile(s));
    load_matrix_x4_transposed(q[s], q_tile(s));
    load_matrix_x4_transposed(k[s], k_tile(s));
  }
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      x[s][r][0] = gate_magnitude(low_bf16(gates[s][r]), bias[kFirst + s], gate);
      x[s][r][1] = gate_magnitude(high_bf16(gates[s][r]), bias[kFirst + s], gate);
      if constexpr (kTail) {  // behind the sequence nothing decays, and q and k never enter arithmetic
        const int token = token_of(r, member, 0);
        const uint32_t mask = token + 1 < valid ? 0xffffffffu : token < valid ? 0xffffu : 0;
        x[s][r][0] = token < valid ? x[s][r][0] : 0.0f;
        x[s][r][1] = token + 1 < valid ? x[s][r][1] : 0.0f;
        q[s][r] &= mask;
        k[s][r] &= mask;
      }
    }
    squares.add(q[s]);
  }
  if constexpr (kLast) squares.exchange<0>(lane);
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    const RunningSum first(x[s][0][0] + x[s][0][1], x[s][1][0] + x[s][1][1], member);
    const RunningSum second(x[s][2][0] + x[s][2][1], x[s][3][0] + x[s][3][1], member);
    if constexpr (kLast)
      if (s + 1 == kCount) squares.exchange<1>(lane);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const RunningSum& sum = r < 2 ? first : second;
      x[s][r][0] = (r < 2 ? kShift : second.total - kShift) - sum.before[r % 2] - x[s][r][0];
      x[s][r][1] = x[s][r][0] - x[s][r][1];
    }
    const float whole = first.total + second.total;
    across[s] = exp2_approx(2 * kShift - whole);
    from_start[s] = across[s] * (1.0f / kShiftFactor);
    if (member == 0) stage.decay[(kFirst + s) * kHalf + piece * kSlice + group] = exp2_approx(-whole);
  }
  wait_for_operands();

#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t row = block * kBlock * 128;
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      uint32_t own_q[2], own_k[2], state_q[2], state_k[2], down[2], seen[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = 2 * block + i;
        const float up[2] = {exp2_approx(x[s][r][0]), exp2_approx(x[s][r][1])};
        const float raw_q[2] = {low_bf16(q[s][r]), high_bf16(q[s][r])};
        const float raw_k[2] = {low_bf16(k[s][r]), high_bf16(k[s][r])};
        const float q0 = raw_q[0] * up[0], q1 = raw_q[1] * up[1], k0 = raw_k[0] * up[0], k1 = raw_k[1] * up[1];
        own_q[i] = pack_bf16(q0, q1);
        own_k[i] = pack_bf16(k0, k1);
        if (block == 1) {
          state_q[i] = pack_bf16(q0 * from_start[s], q1 * from_start[s]);
          state_k[i] = pack_bf16(k0 * from_start[s], k1 * from_start[s]);
        }
        const float down0 = raw_k[0] * exp2_approx(-x[s][r][0]), down1 = raw_k[1] * exp2_approx(-x[s][r][1]);
        down[i] = pack_bf16(down0, down1);
        if (block == 0) seen[i] = pack_bf16(down0 * across[s], down1 * across[s]);
      }
      store_matrix_x2_transposed(q_tile(s) + row, block == 0 ? own_q : state_q);
      store_matrix_x2_transposed(k_tile(s) + row, block == 0 ? own_k : state_k);
      store_matrix_x2_transposed(g_tile(s) + row, block == 0 ? seen : down);
      if (block == 0) {
        store_matrix_x2_transposed(operand_tile(s, offsetof(OperandsHalf, first_down)), down);
        if constexpr (kLast)
          if (s + 1 == kCount) squares.exchange<2>(lane);
      } else {
        store_matrix_x2_transposed(operand_tile(s, offsetof(OperandsHalf, second_q)), own_q);
        store_matrix_x2_transposed(operand_tile(s, offsetof(OperandsHalf, second_k)), own_k);
      }
    }
  }
  if constexpr (kLast) square_sums[SquareSum::token(lane)] = squares.sum[0];
}

/// Of the biases of a head those of this lane's channels: the same piece of both halves. None if there are none.
__device__ __forceinline__ void load_bias(float (&bias)[kSlicesPerWarp], const float* of_head) {
#pragma unroll
  for (int i = 0; i < kSlicesPerWarp; ++i) {
    const int thread = thread_of_cta(), channel = i * kHalf + thread / 32 % 8 * kSlice + thread % 32 / 4;
    bias[i] = of_head == nullptr ? 0.0f : of_head[channel];
  }
}

/// A scaling warp's part of the chunk of `task` in the stage of `place`, halves kFirst ... kFirst + kCount - 1; `turn`
/// chunks were scaled in this CTA before.
template <int kFirst, int kCount>
__device__ __forceinline__ void scale_part(Shared& shared, const Task& task, const float (&bias)[kSlicesPerWarp],
                                           SquareSum& squares, int place, int turn, int valid) {
  const int thread = thread_of_cta(), piece = thread / 32 % 8;
  Operands& operands = shared.operands[turn % kOperands];
  const auto wait_for_operands = [&] {
    if (kFirst == 0 && turn >= kOperands)
      wait_barrier(&shared.consumed[turn % kOperands], static_cast<uint32_t>(turn / kOperands - 1) & 1);
  };
  float* const square_sums = operands.half[0].query_square_sum[piece];
  if (valid >= kChunk)
    scale_slices<false, kFirst, kCount>(shared.stage[place], operands, task.gate, bias, squares, square_sums, piece,
                                        thread % 32, kChunk, wait_for_operands);
  else
    scale_slices<true, kFirst, kCount>(shared.stage[place], operands, task.gate, bias, squares, square_sums, piece,
                                       thread % 32, valid, wait_for_operands);
}

/// A scaling warp of a CTA that walks: one half after the other, for registers are short.
template <Role kRole>
__device__ __forceinline__ void scale_chunks(const Params& p, Shared& shared) {
  const Task& task = shared.task;
  float bias[kSlicesPerWarp];
  load_bias(bias, p.dt_bias == nullptr ? nullptr : p.dt_bias + static_cast<int64_t>(task.head) * kHeadDim);
  const int chunks = task.chunks, last_valid = task.valid_tokens(chunks - 1);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int place = chunk % kStages;
    wait_barrier(&shared.loaded[place], static_cast<uint32_t>(chunk / kStages) & 1);
    if (const int turn = kRole == Role::kAlone ? chunk : shared.turn[place]; turn >= 0) {
      const int valid = chunk + 1 < chunks ? kChunk : last_valid;
      SquareSum squares;
      static_assert(kSlicesPerWarp == 2);
      scale_part<0, 1>(shared, task, bias, squares, place, turn, valid);
      scale_part<1, 1>(shared, task, bias, squares, place, turn, valid);
      fence_to_async_proxy();
    }
    arrive_as_warp(&shared.scaled[place], thread_of_cta() % 32);
  }
}

/// A scaling warp of a CTA that helps: both halves side by side.
__device__ __forceinline__ void scale_orders(const Params& p, Shared& shared) {
#pragma unroll 1
  for (int step = 0, ends = 0; ends < kGivingThreads; ++step) {
    const int place = step % kStages;
    wait_barrier(&shared.loaded[place], static_cast<uint32_t>(step / kStages) & 1);
    const Order& order = order_of(shared.stage[place]);
    const int chunk = order.chunk;
    if (chunk >= 0) {
      float bias[kSlicesPerWarp];
      load_bias(bias, p.dt_bias == nullptr ? nullptr : order.bias);
      SquareSum squares;
      scale_part<0, kSlicesPerWarp>(shared, order.task, bias, squares, place, step, order.task.valid_tokens(chunk));
      fence_to_async_proxy();
    } else {
      ++ends;
    }
    arrive_as_warp(&shared.scaled[place], thread_of_cta() % 32);
  }
}

}  // namespace flash_kda::cuda::fused

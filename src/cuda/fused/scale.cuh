// The scaling warps of the fused kernel: raw q, k, g become, in place, the tiles that the state reads, and Operands. A
// warp has the same slices of 8 channels in every chunk.
//
// All of a slice stays in product fragments between loading and storing. The running sum of the gate is a product too:
// a triangle of ones times the gates; for block 1 with entries +-1/2 instead of 0 and 1, which yields G - middle at
// once, middle being half of the block's total. 2^(G - middle) and its inverse stay within 2^+-58 (docs/operator.md).
#pragma once

#include <cstddef>
#include <type_traits>

#include "cuda/common/cluster.cuh"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

__device__ __forceinline__ GateConstants gate_constants(const Params& p, int head) {
  const float inverse = 1.0f / (-p.lower_bound * kLog2E * kGateUnit);
  return {gate_slope(p, head), inverse, log2f(inverse)};
}

__device__ __forceinline__ float gate_magnitude(float g, float bias, const GateConstants& c) {
  return reciprocal_approx(exp2_approx(fmaf(g + bias, -c.slope, c.log_inverse_scale)) + c.inverse_scale);
}

/// Left operands of the running sum over 16 tokens. Row i, column t: -2 u for t <= i, else 0 (block 0); -u for t <= i,
/// else +u (block 1); u = 1 / (2 * kGateUnit). In fp16 pairs, from the one register that differs between lanes.
struct RunningSum {
  static constexpr uint32_t kUnit = 0x08000800, kSign = 0x80008000, kMinusTwoUnits = 0x8c008c00;
  static_assert(kGateUnit == 4096.0f);  // u = 2^-13
  uint32_t diagonal;                    ///< rows group of the first 8x8 matrix: -2 u or 0

  __device__ __forceinline__ explicit RunningSum(int lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    diagonal = (column <= row ? kMinusTwoUnits & 0xffffu : 0) | (column + 1 <= row ? kMinusTwoUnits & 0xffff0000u : 0);
  }
  __device__ __forceinline__ void add(float (&c)[4], int block, const uint32_t* gates) const {
    const uint32_t middle = kUnit | (diagonal & kSign);
    const uint32_t from_start[4] = {diagonal, kMinusTwoUnits, 0, diagonal};
    const uint32_t from_middle[4] = {middle, kUnit | kSign, kUnit, middle};
    multiply_accumulate_half(c, block == 0 ? from_start : from_middle, gates[0], gates[1]);
  }
};

/// Sum of squares of fragments of tokens 8r ... 8r + 7 over their 8 channels. Every lane gets the sum of token 8 *
/// member + group: each exchange of two lanes halves the tokens that a lane is left with.
__device__ __forceinline__ float square_sum(const uint32_t (&x)[4], int lane) {
  float sum[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float low = low_bf16(x[r]), high = high_bf16(x[r]);
    sum[r] = fmaf(low, low, high * high);
  }
  const bool odd = lane % 2 == 1, upper = lane / 2 % 2 == 1;
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // tokens 8r and 8r + 16 by the second bit
    const float given = __shfl_xor_sync(0xffffffffu, upper ? sum[r] : sum[r + 2], 2);
    sum[r] = (upper ? sum[r + 2] : sum[r]) + given;
  }
  const float given = __shfl_xor_sync(0xffffffffu, odd ? sum[0] : sum[1], 1);
  return (odd ? sum[1] : sum[0]) + given;
}

/// What a slice passes on to the next chunk: from the middle of block 1 to its end.
struct Carry {
  float sum = 0;         ///< this lane's part of the gates' magnitudes, channel group
  float anchor[2] = {};  ///< G, channels 2 * member + {0, 1}
};

/// Gate, running sum and scaled tiles of 8 channels: piece `piece` of half `part`. kTail: only `valid` tokens belong to
/// the sequence. Every register array over r holds, of tokens 8r ... 8r + 7, token group and channels 2 * member + {0,
/// 1}.
template <bool kTail>
__device__ __forceinline__ void scale_slice(Stage& stage, Operands& operands, const HeadGate& head, Carry& carry,
                                            int part, int piece, int lane, int valid) {
  const int group = lane / 4, member = lane % 4, channel = part * kHalf + piece * kSlice + group;
  // Where a lane points ldmatrix and stmatrix: row `lane` of a tile is that of matrix lane / 8.
  const auto offset = static_cast<uint32_t>(tile_offset(lane, piece * kSlice));
  const uint32_t stage_place = shared_address(&stage) + offset, operands_place = shared_address(&operands) + offset;
  const uint32_t k_tile = stage_place + part * static_cast<uint32_t>(sizeof(KeysQueries));
  const uint32_t q_tile = k_tile + kHalfBytes;
  const uint32_t g_tile = stage_place + static_cast<uint32_t>(offsetof(Stage, g)) + part * kHalfBytes;
  const uint32_t first_down = operands_place + part * static_cast<uint32_t>(sizeof(OperandsHalf));
  const uint32_t second_k = first_down + static_cast<uint32_t>(offsetof(OperandsHalf, second_k));
  const uint32_t second_q = first_down + static_cast<uint32_t>(offsetof(OperandsHalf, second_q));

  // The right operand of the running sum: tokens 8r + 2 * member + {0, 1} of channel group.
  uint32_t gates[4], q[4], k[4];
  load_matrix_x4_transposed(gates, g_tile);
  load_matrix_x4(q, q_tile);
  load_matrix_x4(k, k_tile);
  const GateConstants gate = head.constants;
  const float bias = head.bias[channel];
  float total[2];  // of the blocks, channel group, over this lane's tokens
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    float first = gate_magnitude(low_bf16(gates[r]), bias, gate),
          second = gate_magnitude(high_bf16(gates[r]), bias, gate);
    if constexpr (kTail) {  // behind the sequence nothing decays
      const int token = 8 * r + 2 * member;
      first = token < valid ? first : 0.0f;
      second = token + 1 < valid ? second : 0.0f;
    }
    gates[r] = pack_half(first, second);
    total[r / 2] = r % 2 == 0 ? first + second : total[r / 2] + (first + second);
  }
  // The decay of the state is a product over the sequence: not from gates in fp16. Its exchanges are spread over what
  // follows, which need not wait for them.
  const float half = 0.5f * total[1];
  float step = carry.sum + total[0] + half;
  carry.sum = half;
  const float step_of_neighbour = __shfl_xor_sync(0xffffffffu, step, 1);
  const RunningSum running_sum(lane);
  // x[block] is the C fragment of G + kShift (block 0) and G - middle (block 1); `last` its row 15.
  float x[2][4], last[2][2];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[block][i] = block == 0 ? kShift + carry.anchor[i % 2] : 0.0f;
    running_sum.add(x[block], block, &gates[2 * block]);
#pragma unroll
    for (int i = 0; i < 2; ++i) last[block][i] = __shfl_sync(0xffffffffu, x[block][2 + i], 28 + member);
  }
  if constexpr (kTail) {  // rows behind the sequence never enter arithmetic
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (8 * r + group >= valid) q[r] = k[r] = 0;
  }
  step += step_of_neighbour;
  const float step_of_others = __shfl_xor_sync(0xffffffffu, step, 2);
  const float squares = square_sum(q, lane);

  // What takes a block's own scale to that of the middle of block 1 (times kSeenFactor) and of the state.
  float across[2], from_state[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    across[i] = exp2_approx(last[0][i] + last[1][i] + kSeenShift);
    from_state[i] = across[i] * (1.0f / (kShiftFactor * kSeenFactor));
    carry.anchor[i] = last[1][i];
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t row = block * kBlock * 128;
    uint32_t own_q[2], own_k[2], state_q[2], state_k[2], down[2], seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float up[2] = {exp2_approx(x[block][2 * r]), exp2_approx(x[block][2 * r + 1])};
      const uint32_t raw_q = q[2 * block + r], raw_k = k[2 * block + r];
      const float q0 = low_bf16(raw_q) * up[0], q1 = high_bf16(raw_q) * up[1];
      const float k0 = low_bf16(raw_k) * up[0], k1 = high_bf16(raw_k) * up[1];
      own_q[r] = pack_bf16(q0, q1);
      own_k[r] = pack_bf16(k0, k1);
      if (block == 1) {
        state_q[r] = pack_bf16(q0 * from_state[0], q1 * from_state[1]);
        state_k[r] = pack_bf16(k0 * from_state[0], k1 * from_state[1]);
      }
    }
    store_matrix_x2(q_tile + row, block == 0 ? own_q : state_q);
    store_matrix_x2(k_tile + row, block == 0 ? own_k : state_k);
    if (block == 1) {
      store_matrix_x2(second_q, own_q);
      store_matrix_x2(second_k, own_k);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t raw_k = k[2 * block + r];
      const float k0 = low_bf16(raw_k) * exp2_approx(-x[block][2 * r]);
      const float k1 = high_bf16(raw_k) * exp2_approx(-x[block][2 * r + 1]);
      down[r] = pack_bf16(k0, k1);
      if (block == 0) seen[r] = pack_bf16(k0 * across[0], k1 * across[1]);
    }
    if (block == 0) store_matrix_x2(first_down, down);
    store_matrix_x2(g_tile + row, block == 0 ? seen : down);
  }
  operands.half[part].query_square_sum[piece][8 * member + group] = squares;
  if (member == 0) stage.decay[channel] = exp2_approx((step + step_of_others) * (-1.0f / kGateUnit));
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
  if (chunk + 1 == task.chunks) give(shared.remainder + half * kHalf, kHalf * sizeof(float));
  ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, scaled, total);
}

/// A scaling warp's part of every chunk of the task.
template <int kStateGroups>
__device__ __forceinline__ void scale_chunks(const Task& task, Shared& shared) {
  constexpr Roles kRoles{kStateGroups};
  constexpr int kOwn = kRoles.slices_per_warp();  // the same piece of both halves, or of the CTA's own
  constexpr bool kShared = kRoles.ctas() == 2;
  Carry carry[kOwn];
  const int chunks = task.chunks, last_valid = task.valid_tokens(chunks - 1);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    wait_barrier(&shared.loaded[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
    if (chunk >= kOperands)  // by the other CTA too: what it was given has arrived
      wait_barrier(&shared.consumed[chunk % kOperands], static_cast<uint32_t>(chunk / kOperands - 1) & 1);
    Stage& stage = shared.stage[chunk % kStages];
    Operands& operands = shared.operands[chunk % kOperands];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      // Little is kept from slice to slice: registers are short.
      const int thread = thread_of_cta(), part = kShared ? task.rank() : i, piece = thread / 32 % 8;
      if (chunk + 1 < chunks || last_valid == kChunk)
        scale_slice<false>(stage, operands, shared.gate, carry[i], part, piece, thread % 32, kChunk);
      else
        scale_slice<true>(stage, operands, shared.gate, carry[i], part, piece, thread % 32, last_valid);
    }
    if (chunk + 1 == chunks) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int thread = thread_of_cta(), part = kShared ? task.rank() : i;
        float rest = carry[i].sum;
        rest += __shfl_xor_sync(0xffffffffu, rest, 1);
        rest += __shfl_xor_sync(0xffffffffu, rest, 2);
        if (thread % 4 == 0)
          shared.remainder[part * kHalf + thread / 32 % 8 * kSlice + thread % 32 / 4] =
              exp2_approx(rest * (-1.0f / kGateUnit));
      }
    }
    fence_to_async_proxy();
    const int thread = thread_of_cta();
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

// The scaling warps of the fused kernel: raw q, k, g become, in place, the tiles that the state reads, and Operands. A
// warp has the same slices of 8 channels in every chunk.
//
// All of a slice stays in product fragments between loading and storing. The running sum of the gate is a product too:
// a triangle of ones times the gates; for block 1 with entries +-1/2 instead of 0 and 1, which yields G - middle at
// once, middle being half of the block's total. 2^(G - middle) and its inverse stay within 2^+-58 (docs/operator.md).
#pragma once

#include <cstddef>
#include <type_traits>

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

/// Sum of squares over 8 channels of every token of a chunk: the diagonal of x x^T. x: the fragments of tokens 8r ...
/// 8r + 7.
__device__ __forceinline__ void store_square_sum(float* sums, const uint32_t (&x)[4], int lane) {
  const int token = lane / 4;
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    float upper[4] = {}, lower[4] = {};
    multiply_accumulate_k8(upper, x[2 * block], x[2 * block + 1], x[2 * block]);
    multiply_accumulate_k8(lower, x[2 * block], x[2 * block + 1], x[2 * block + 1]);
    if (token / 2 == lane % 4) {
      sums[block * kBlock + token] = token % 2 == 0 ? upper[0] : upper[1];
      sums[block * kBlock + 8 + token] = token % 2 == 0 ? lower[2] : lower[3];
    }
  }
}

/// Gate, running sum and scaled tiles of 8 channels: piece `piece` of half kPart. kTail: only `valid` tokens belong to
/// the sequence. Every register array over r holds, of tokens 8r ... 8r + 7, token group and channels 2 * member + {0,
/// 1}.
template <bool kTail, int kPart>
__device__ __forceinline__ void scale_slice(Stage& stage, Operands& operands, const HeadGate& head, int piece, int lane,
                                            int valid) {
  const int group = lane / 4, member = lane % 4;
  // Where a lane points ldmatrix and stmatrix: row `lane` of a tile is that of matrix lane / 8.
  const auto offset = static_cast<uint32_t>(tile_offset(lane, piece * kSlice));
  const uint32_t stage_place = shared_address(&stage) + offset, operands_place = shared_address(&operands) + offset;
  const uint32_t k_tile = stage_place + kPart * static_cast<uint32_t>(sizeof(KeysQueries));
  const uint32_t q_tile = k_tile + kHalfBytes;
  const uint32_t g_tile = stage_place + static_cast<uint32_t>(offsetof(Stage, g)) + kPart * kHalfBytes;
  const uint32_t left = operands_place + kPart * Operands::kLeftHalf;
  const uint32_t right =
      operands_place + static_cast<uint32_t>(offsetof(Operands, right)) + kPart * Operands::kRightHalf;

  // The right operand of the running sum: tokens 8r + 2 * member + {0, 1} of channel group.
  uint32_t gates[4];
  load_matrix_x4_transposed(gates, g_tile);
  const GateConstants gate = head.constants;
  const float bias = head.bias[kPart * kHalf + piece * kSlice + group];
  float total = 0;  // of channel group, over this lane's tokens
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
    total += first + second;
  }
  // The decay of the whole chunk is a product over the sequence: not from gates in fp16.
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
  if (member == 0) stage.decay[kPart * kHalf + piece * kSlice + group] = exp2_approx(total * (-1.0f / kGateUnit));
  const RunningSum running_sum(lane);
  // x[block] is the C fragment of G + kShift (block 0) and G - middle (block 1); `last` its row 15.
  float x[2][4], last[2][2];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[block][i] = block == 0 ? kShift : 0.0f;
    running_sum.add(x[block], block, &gates[2 * block]);
#pragma unroll
    for (int i = 0; i < 2; ++i) last[block][i] = __shfl_sync(0xffffffffu, x[block][2 + i], 28 + member);
  }
  uint32_t q[4], k[4];
  load_matrix_x4(q, q_tile);
  load_matrix_x4(k, k_tile);
  if constexpr (kTail) {  // rows behind the sequence never enter arithmetic
#pragma unroll
    for (int r = 0; r < 4; ++r)
      if (8 * r + group >= valid) q[r] = k[r] = 0;
  }
  store_square_sum(operands.query_square_sum[kPart * kSlices / 2 + piece], q, lane);

  // What takes a block's own scale to that of the chunk's start, of its end, and of the middle of block 1.
  float second[2], across[2];  // 2^(half of block 1), 2^(block 0 and that half), shifted
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    second[i] = exp2_approx(last[1][i]);
    across[i] = exp2_approx(last[0][i]) * second[i];
  }
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t row = block * kBlock * 128;
    uint32_t own_q[2], own_k[2], state_q[2], state_k[2], restored[2], down[2], seen[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float up[2] = {exp2_approx(x[block][2 * r]), exp2_approx(x[block][2 * r + 1])};
      const uint32_t raw_q = q[2 * block + r], raw_k = k[2 * block + r];
      const float q0 = low_bf16(raw_q) * up[0], q1 = high_bf16(raw_q) * up[1];
      const float k0 = low_bf16(raw_k) * up[0], k1 = high_bf16(raw_k) * up[1];
      own_q[r] = pack_bf16(q0, q1);
      own_k[r] = pack_bf16(k0, k1);
      if (block == 1) {
        const float from_start[2] = {across[0] * (1.0f / kShiftFactor), across[1] * (1.0f / kShiftFactor)};
        state_q[r] = pack_bf16(q0 * from_start[0], q1 * from_start[1]);
        state_k[r] = pack_bf16(k0 * from_start[0], k1 * from_start[1]);
      }
    }
    store_matrix_x2(q_tile + row, block == 0 ? own_q : state_q);
    store_matrix_x2(k_tile + row, block == 0 ? own_k : state_k);
    if (block == 1) store_matrix_x4(left, {own_k[0], own_k[1], own_q[0], own_q[1]});
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t raw_k = k[2 * block + r];
      const float k0 = low_bf16(raw_k) * exp2_approx(-x[block][2 * r]);
      const float k1 = high_bf16(raw_k) * exp2_approx(-x[block][2 * r + 1]);
      down[r] = pack_bf16(k0, k1);
      if (block == 0) {
        const float seen0 = k0 * across[0], seen1 = k1 * across[1];
        seen[r] = pack_bf16(seen0, seen1);
        restored[r] = pack_bf16(seen0 * second[0], seen1 * second[1]);
      } else {
        restored[r] = pack_bf16(k0 * second[0], k1 * second[1]);
      }
    }
    store_matrix_x2(g_tile + row, restored);
    if (block == 0)
      store_matrix_x4(right, {down[0], down[1], seen[0], seen[1]});
    else
      store_matrix_x2(right + 2 * row, down);
  }
}

/// A scaling warp's part of every chunk of the task.
template <int kStateGroups>
__device__ __forceinline__ void scale_chunks(const Task& task, Shared& shared) {
  constexpr Roles kRoles{kStateGroups};
#pragma unroll 1
  for (int chunk = 0; chunk < task.chunks; ++chunk) {
    wait_barrier(&shared.loaded[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
    if (chunk >= kOperands)
      wait_barrier(&shared.consumed[chunk % kOperands], static_cast<uint32_t>(chunk / kOperands - 1) & 1);
    const auto scale_half = [&]<int kPart>(std::integral_constant<int, kPart>) {
      // Nothing but chunk is kept from half to half: registers are short.
      const int thread = thread_of_cta(), now = forget(chunk);
      const int valid = task.valid_tokens(now), piece = thread / 32 % 8;
      Stage& stage = shared.stage[now % kStages];
      Operands& operands = shared.operands[now % kOperands];
      if (valid < kChunk)
        scale_slice<true, kPart>(stage, operands, shared.gate, piece, thread % 32, valid);
      else
        scale_slice<false, kPart>(stage, operands, shared.gate, piece, thread % 32, valid);
    };
    // A warp has one piece of both halves, or of one.
    const bool both = kRoles.slices_per_warp() == 2;
    const int warp_half = (thread_of_cta() / 32 - 4 * kStateGroups) / 8;
#pragma unroll 1
    for (int half = both ? 0 : warp_half; half <= (both ? 1 : warp_half); ++half) {
      if (half == 0)
        scale_half(std::integral_constant<int, 0>());
      else
        scale_half(std::integral_constant<int, 1>());
    }
    fence_to_async_proxy();
    arrive_as_warp(&shared.scaled[chunk % kStages], thread_of_cta() % 32);
  }
}

}  // namespace flash_kda::cuda::fused

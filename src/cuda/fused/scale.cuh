// The first part of preparing a chunk: raw q, k, g become, in place, the tiles that the state reads, and Operands; a
// warp takes 16 channels.
//
// All of a slice stays in product fragments between loading and storing. The running sum of the gate is a product too:
// a triangle of ones times the gates; for block 1 with entries +-1/2 instead of 0 and 1, which yields G - middle at
// once, middle being half of the block's total. 2^(G - middle) and its inverse stay within 2^+-58 (docs/operator.md).
#pragma once

#include <cstddef>

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

/// Gates enter the product as fp16 times this: 7.3 * 4096 is below fp16's largest number, and gates down to 1.5e-8 keep
/// its full precision. A relative error of 2^-11 of a gate is far below that of the bf16 operands it scales.
inline constexpr float kGateUnit = 4096.0f;

/// Per-head constants of |log2 gate| * kGateUnit = 1 / (2^(-x) / s + 1 / s), x = (g + bias) * slope, s = its largest
/// value.
struct GateConstants {
  float slope;
  float inverse_scale;      ///< 1 / s
  float log_inverse_scale;  ///< log2(1 / s)
};

__device__ __forceinline__ GateConstants gate_constants(const Params& p, int head) {
  const float inverse = 1.0f / (-p.lower_bound * kLog2E * kGateUnit);
  return {gate_slope(p, head), inverse, log2f(inverse)};
}

__device__ __forceinline__ float gate_magnitude(float g, float bias, const GateConstants& c) {
  return reciprocal_approx(exp2_approx(fmaf(g + bias, -c.slope, c.log_inverse_scale)) + c.inverse_scale);
}

/// Left operands of the running sum over 16 tokens. Row i, column t: -2 u for t <= i, else 0 (block 0); -u for t <= i,
/// else +u (block 1); u = 1 / (2 * kGateUnit).
struct RunningSum {
  uint32_t from_start[4], from_middle[4];
};

__device__ __forceinline__ void running_sum_operands(RunningSum& a, int lane) {
  const int row = lane / 4, column = 2 * (lane % 4);
  const float unit = 0.5f / kGateUnit;
  const bool first = column <= row, second = column + 1 <= row;
  a.from_start[0] = a.from_start[3] = pack_half(first ? -2 * unit : 0.0f, second ? -2 * unit : 0.0f);
  a.from_start[1] = pack_half(-2 * unit, -2 * unit);
  a.from_start[2] = 0;
  a.from_middle[0] = a.from_middle[3] = pack_half(first ? -unit : unit, second ? -unit : unit);
  a.from_middle[1] = pack_half(-unit, -unit);
  a.from_middle[2] = pack_half(unit, unit);
}

/// Sum of squares over 16 channels of every token of a block, from its left operand x: the diagonal of x x^T.
__device__ __forceinline__ void store_square_sum(float* sums, const uint32_t (&x)[4], int lane) {
  float upper[4] = {}, lower[4] = {};
  multiply_accumulate(upper, x, x[0], x[2]);  // against tokens 0 ... 7
  multiply_accumulate(lower, x, x[1], x[3]);  // against tokens 8 ... 15
  const int token = lane / 4;
  if (token / 2 == lane % 4) {
    sums[token] = token % 2 == 0 ? upper[0] : upper[1];
    sums[token + 8] = token % 2 == 0 ? lower[2] : lower[3];
  }
}

/// Where a lane points ldmatrix and stmatrix in a slice: matrices (tokens 0-7, channels 0-7), (8-15, 0-7), (0-7, 8-15),
/// (8-15, 8-15) of a block, which are the registers of a left operand.
__device__ __forceinline__ uint32_t slice_offset(int slice, int lane) {
  return static_cast<uint32_t>(tile_offset(lane % 16, 8 * (lane / 16)) ^ slice % 4 << 5);
}

/// Gate, running sum and scaled tiles of 16 channels. kTail: only `valid` tokens belong to the sequence.
template <bool kTail>
__device__ __forceinline__ void scale_slice(Stage& stage, Operands& operands, const float* dt_bias, int slice, int lane,
                                            int valid, const GateConstants& gate, const RunningSum& running_sum) {
  const int group = lane / 4, member = lane % 4;
  const uint32_t offset = slice_offset(slice, lane);
  const uint32_t tile = shared_address(&stage) + offset + slice / 4 * kHalfBytes;
  const uint32_t left = shared_address(operands.left) + offset + slice / 4 * Operands::kLeftHalf;
  const uint32_t right = shared_address(operands.right) + offset + slice / 4 * Operands::kRightHalf;
  const float bias[2] = {dt_bias[slice * kSlice + group], dt_bias[slice * kSlice + 8 + group]};
  uint32_t raw[2][4];  // [block], tokens 2 * member + {0, 1} and + 8 of channel group, then of channel group + 8
#pragma unroll
  for (int block = 0; block < 2; ++block)
    load_matrix_x4_transposed(raw[block], tile + offsetof(Stage, g) + block * kBlock * 128);

  // x is the C fragment of G + kShift (block 0) and G - middle (block 1), channels 8n ... 8n + 7; `last` its row 15.
  float x[2][2][4], last[2][2][2];
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t packed[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      packed[r] = pack_half(gate_magnitude(low_bf16(raw[block][r]), bias[r / 2], gate),
                            gate_magnitude(high_bf16(raw[block][r]), bias[r / 2], gate));
      if constexpr (kTail) {  // behind the sequence nothing decays
        const int token = block * kBlock + 8 * (r % 2) + 2 * member;
        packed[r] = token + 1 < valid ? packed[r] : token < valid ? packed[r] & 0xffffu : 0;
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[block][n][i] = block == 0 ? kShift : 0.0f;
      multiply_accumulate_half(x[block][n], block == 0 ? running_sum.from_start : running_sum.from_middle,
                               packed[2 * n], packed[2 * n + 1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) last[block][n][i] = __shfl_sync(0xffffffffu, x[block][n][2 + i], 28 + member);
    }
  }
  // What takes a block's own scale to that of the chunk's start, of its end, and of the middle of block 1.
  float from_start[2][2], to_end[2][2][2], across[2][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    float decay[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float second = exp2_approx(last[1][n][i]);  // half of block 1
      across[n][i] = exp2_approx(last[0][n][i]) * second;
      from_start[n][i] = across[n][i] * (1.0f / kShiftFactor);
      to_end[0][n][i] = across[n][i] * second;
      to_end[1][n][i] = second;
      decay[i] = to_end[0][n][i] * (1.0f / kShiftFactor);
    }
    if (lane < 4) *reinterpret_cast<float2*>(&stage.decay[slice * kSlice + 8 * n + 2 * member]) = {decay[0], decay[1]};
  }

#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const uint32_t place = tile + block * kBlock * 128;
    uint32_t q[4], k[4];
    load_matrix_x4(q, place + offsetof(Stage, q));
    load_matrix_x4(k, place + offsetof(Stage, k));
    if constexpr (kTail) {  // rows behind the sequence never enter arithmetic
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (block * kBlock + 8 * (r % 2) + group >= valid) q[r] = k[r] = 0;
    }
    store_square_sum(&operands.square_sum[slice][0][block * kBlock], q, lane);
    store_square_sum(&operands.square_sum[slice][1][block * kBlock], k, lane);
    uint32_t up_q[4], up_k[4], from_start_q[4], from_start_k[4], down[4], restored[4], seen[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int n = r / 2, i = 2 * (r % 2);
      const float up0 = exp2_approx(x[block][n][i]), up1 = exp2_approx(x[block][n][i + 1]);
      const float down0 = low_bf16(k[r]) * exp2_approx(-x[block][n][i]);
      const float down1 = high_bf16(k[r]) * exp2_approx(-x[block][n][i + 1]);
      const float q0 = low_bf16(q[r]) * up0, q1 = high_bf16(q[r]) * up1;
      const float k0 = low_bf16(k[r]) * up0, k1 = high_bf16(k[r]) * up1;
      up_q[r] = pack_bf16(q0, q1);
      up_k[r] = pack_bf16(k0, k1);
      down[r] = pack_bf16(down0, down1);
      restored[r] = pack_bf16(down0 * to_end[block][n][0], down1 * to_end[block][n][1]);
      if (block == 0) {
        seen[r] = pack_bf16(down0 * across[n][0], down1 * across[n][1]);
      } else {
        from_start_q[r] = pack_bf16(q0 * from_start[n][0], q1 * from_start[n][1]);
        from_start_k[r] = pack_bf16(k0 * from_start[n][0], k1 * from_start[n][1]);
      }
    }
    store_matrix_x4(place + offsetof(Stage, q), block == 0 ? up_q : from_start_q);
    store_matrix_x4(place + offsetof(Stage, k), block == 0 ? up_k : from_start_k);
    store_matrix_x4(place + offsetof(Stage, g), restored);
    store_matrix_x4(right + 2 * block * kBlock * 128, down);
    if (block == 0) {
      store_matrix_x4(right + kBlock * 128, seen);
    } else {
      store_matrix_x4(left, up_k);
      store_matrix_x4(left + kBlock * 128, up_q);
    }
  }
}

}  // namespace flash_kda::cuda::fused

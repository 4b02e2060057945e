// The first part of preparing a chunk: raw q, k, g become, in place, the tiles that the state reads, and Operands; a warp
// takes 16 channels.
//
// All of a slice stays in product fragments between loading and storing. The running sum of the gate is a product too: with
// entries +-1/2 instead of 0 and 1 a triangle of ones yields G - middle at once, where middle is half of the total of a block
// of 16 tokens. 2^(G - middle) and its inverse stay within 2^+-58 (docs/operator.md).
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

/// Left operand of the running sum over 16 tokens: row i, column t is -u for t <= i, else +u, u = 1 / (2 * kGateUnit).
__device__ __forceinline__ void running_sum_operand(uint32_t (&a)[4], int lane) {
  const int row = lane / 4, column = 2 * (lane % 4);
  const float unit = 0.5f / kGateUnit;
  a[0] = a[3] = pack_half(column <= row ? -unit : unit, column + 1 <= row ? -unit : unit);
  a[1] = pack_half(-unit, -unit);
  a[2] = pack_half(unit, unit);
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

/// Tiles of one block from its raw q and k. x[n] is the C fragment of G - middle, channels 8n ... 8n + 7; factors are
/// those of this thread's four channels.
template <int kBlockIndex>
__device__ __forceinline__ void scale_block(Stage& stage, Operands& operands, int slice, int lane,
                                            const uint32_t (&q)[4], const uint32_t (&k)[4], const float (&x)[2][4],
                                            const float (&from_start)[2][2], const float (&to_end)[2][2],
                                            const float (&across)[2][2]) {
  const uint32_t offset = slice_offset(slice, lane);
  const uint32_t in_stage = offset + slice / 4 * kHalfBytes + kBlockIndex * kBlock * 128;
  const uint32_t left = shared_address(operands.left) + offset + slice / 4 * Operands::kLeftHalf;
  const uint32_t right = shared_address(operands.right) + offset + slice / 4 * Operands::kRightHalf;
  store_square_sum(&operands.square_sum[slice][0][kBlockIndex * kBlock], q, lane);
  store_square_sum(&operands.square_sum[slice][1][kBlockIndex * kBlock], k, lane);
  uint32_t scaled[4], other[4];
  {
    float up[2][4];
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) up[n][i] = exp2_approx(x[n][i]);
    const auto scale_up = [&](const uint32_t(&raw)[4], unsigned char* tile, uint32_t left_tile) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int n = r / 2, i = 2 * (r % 2);
        const float first = low_bf16(raw[r]) * up[n][i], second = high_bf16(raw[r]) * up[n][i + 1];
        scaled[r] = pack_bf16(first, second);
        other[r] = pack_bf16(first * from_start[n][0], second * from_start[n][1]);
      }
      store_matrix_x4(left_tile, scaled);
      store_matrix_x4(shared_address(tile) + in_stage, other);
    };
    scale_up(q, stage.q, left + (2 * kBlockIndex + 1) * kBlock * 128);
    scale_up(k, stage.k, left + 2 * kBlockIndex * kBlock * 128);
  }
  uint32_t seen[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int n = r / 2, i = 2 * (r % 2);
    const float first = low_bf16(k[r]) * exp2_approx(-x[n][i]), second = high_bf16(k[r]) * exp2_approx(-x[n][i + 1]);
    scaled[r] = pack_bf16(first, second);
    other[r] = pack_bf16(first * to_end[n][0], second * to_end[n][1]);
    if constexpr (kBlockIndex == 0) seen[r] = pack_bf16(first * across[n][0], second * across[n][1]);
  }
  store_matrix_x4(right + 2 * kBlockIndex * kBlock * 128, scaled);
  store_matrix_x4(shared_address(stage.g) + in_stage, other);
  if constexpr (kBlockIndex == 0) store_matrix_x4(right + kBlock * 128, seen);
}

/// Gate, running sum and scaled tiles of 16 channels.
__device__ __forceinline__ void scale_slice(Stage& stage, Operands& operands, const float* dt_bias, int slice, int lane,
                                            int valid, const GateConstants& gate, const uint32_t (&running_sum)[4]) {
  const int member = lane % 4;
  const uint32_t tile = shared_address(&stage) + slice_offset(slice, lane) + slice / 4 * kHalfBytes;
  uint32_t raw[2][4], q[2][4], k[2][4];  // [block]
#pragma unroll
  for (int block = 0; block < 2; ++block)
    load_matrix_x4_transposed(raw[block], tile + offsetof(Stage, g) + block * kBlock * 128);
  const auto load_block = [&](int block) {
    load_matrix_x4(q[block], tile + offsetof(Stage, q) + block * kBlock * 128);
    load_matrix_x4(k[block], tile + offsetof(Stage, k) + block * kBlock * 128);
    if (valid < kChunk) {  // rows behind the sequence never enter arithmetic
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (block * kBlock + 8 * (r % 2) + lane / 4 >= valid) q[block][r] = k[block][r] = 0;
    }
  };
  load_block(0);
  const float bias[2] = {dt_bias[slice * kSlice + lane / 4], dt_bias[slice * kSlice + 8 + lane / 4]};
  float x[2][2][4], middle[2][2][2];  // [block][channels 8n ...]
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t packed[4];  // tokens 2 * member + {0, 1} and + 8 of channel lane / 4, then of channel lane / 4 + 8
#pragma unroll
    for (int r = 0; r < 4; ++r)
      packed[r] = pack_half(gate_magnitude(low_bf16(raw[block][r]), bias[r / 2], gate),
                            gate_magnitude(high_bf16(raw[block][r]), bias[r / 2], gate));
    if (valid < kChunk) {  // behind the sequence nothing decays
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int token = block * kBlock + 8 * (r % 2) + 2 * member;
        packed[r] = token + 1 < valid ? packed[r] : token < valid ? packed[r] & 0xffffu : 0;
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[block][n][i] = 0.0f;
      multiply_accumulate_half(x[block][n], running_sum, packed[2 * n], packed[2 * n + 1]);
      // Row 15 of G - middle is middle itself.
#pragma unroll
      for (int i = 0; i < 2; ++i) middle[block][n][i] = __shfl_sync(0xffffffffu, x[block][n][2 + i], 28 + member);
    }
  }
  float from_start[2][2][2], to_end[2][2][2], across[2][2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = exp2_approx(middle[0][n][i]), second = exp2_approx(middle[1][n][i]);
      across[n][i] = first * second;
      from_start[0][n][i] = first;
      from_start[1][n][i] = across[n][i] * first;
      to_end[0][n][i] = across[n][i] * second;
      to_end[1][n][i] = second;
    }
    if (lane < 4)  // the chunk's total is 2 * (middle of block 0 + middle of block 1)
      *reinterpret_cast<float2*>(&stage.decay[slice * kSlice + 8 * n + 2 * member]) = {across[n][0] * across[n][0],
                                                                                       across[n][1] * across[n][1]};
  }
  scale_block<0>(stage, operands, slice, lane, q[0], k[0], x[0], from_start[0], to_end[0], across);
  load_block(1);
  scale_block<1>(stage, operands, slice, lane, q[1], k[1], x[1], from_start[1], to_end[1], across);
}

}  // namespace flash_kda::cuda::fused

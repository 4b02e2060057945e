// The finishing warps of the fused kernel. Inverting warps take a chunk each in turn: A, T = (I + A)^-1 and what the
// state needs to know of the keys. The scoring warp takes every chunk: P and the queries' norms.
#pragma once

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/triangular_inverse.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

/// c += a * b^T for 16x16 matrices; b as loaded by load_matrix_x4 with (rows 0-7, columns 0-7), (0-7, 8-15), (8-15,
/// 0-7), (8-15, 8-15).
__device__ __forceinline__ void multiply(float (&c)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  multiply_accumulate(c[0], a, b[0], b[1]);
  multiply_accumulate(c[1], a, b[2], b[3]);
}

/// The blocks on and below the diagonal of a [32, 32] product, as C fragments.
struct TriangularProducts {
  float first[2][4], second[2][4], below[2][4];
};

/// Of the rows at `first_left` (block 0, in a stage) and `second_left` (block 1, in Operands) with the keys of
/// Operands. Called by a warp.
__device__ __forceinline__ TriangularProducts triangular_products(const unsigned char* first_left,
                                                                  const unsigned char* second_left,
                                                                  const Operands& operands, int lane) {
  TriangularProducts c = {};
  const uint32_t left_offset = static_cast<uint32_t>(tile_offset(lane % 16, 8 * (lane / 16)));
  const uint32_t right_offset = static_cast<uint32_t>(tile_offset(lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)));
#pragma unroll 2
  for (int step = 0; step < kHeadDim / 16; ++step) {  // channels 16 * step ...
    const int half = step / 4;
    const uint32_t piece = step % 4 << 5;
    const uint32_t right = shared_address(operands.right) + half * Operands::kRightHalf + (right_offset ^ piece);
    uint32_t a[4], b[4];
    load_matrix_x4(
        a, shared_address(first_left) + half * static_cast<uint32_t>(sizeof(KeysQueries)) + (left_offset ^ piece));
    load_matrix_x4(b, right);
    multiply(c.first, a, b);
    load_matrix_x4(a, shared_address(second_left) + half * Operands::kLeftHalf + (left_offset ^ piece));
    load_matrix_x4(b, right + kBlock * 128);
    multiply(c.below, a, b);
    load_matrix_x4(b, right + 2 * kBlock * 128);
    multiply(c.second, a, b);
  }
  return c;
}

/// One 16x16 block of T (columns 0 ... 31 of the square) or P (columns 32 ... 63) at (row, column).
__device__ __forceinline__ void store_block(Stage& stage, int row, int column, const float (&c)[2][4], int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower)
      *reinterpret_cast<uint32_t*>(
          &stage.square[tile_offset(row + lane / 4 + 8 * lower, column + 8 * n + 2 * (lane % 4))]) =
          pack_bf16(c[n][2 * lower], c[n][2 * lower + 1]);
}

/// c as the sum of two left operands.
__device__ __forceinline__ void split_left_operand(uint32_t (&high)[4], uint32_t (&low)[4], const float (&c)[2][4]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float first = c[r / 2][2 * (r % 2)], second = c[r / 2][2 * (r % 2) + 1];
    high[r] = pack_bf16(first, second);
    low[r] = pack_bf16(first - low_bf16(high[r]), second - high_bf16(high[r]));
  }
}

/// c = a * b for 16x16 matrices in C fragments, every operand as a sum of two bf16 terms; the product of the small ones
/// is left out.
__device__ __forceinline__ void multiply_blocks(float (&c)[2][4], const float (&a)[2][4], const float (&b)[2][4]) {
  uint32_t a_high[4], a_low[4], b_high[4], b_low[4];
  split_left_operand(a_high, a_low, a);
  split_left_operand(b_high, b_low, b);
#pragma unroll
  for (int r = 0; r < 4; ++r) {  // left operand -> right operand: every 8x8 matrix transposed
    b_high[r] = transpose_matrix(b_high[r]);
    b_low[r] = transpose_matrix(b_low[r]);
  }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0.0f;
  multiply(c, a_high, b_low);
  multiply(c, a_low, b_high);
  multiply(c, a_high, b_high);
}

/// 1/|k| of token `lane` of the chunk: |k|^2 is the diagonal of the products.
__device__ __forceinline__ float inverse_key_norm(const Params& p, const TriangularProducts& A, int lane) {
  const bool odd = lane / 4 % 2 == 1;  // lanes with group / 2 == member hold the diagonal of rows group and group + 8
  const int from = 4 * (lane % 8) + lane % 8 / 2;
  float square = 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) {  // tokens 8r ... 8r + 7
    const float(&c)[4] = r < 2 ? A.first[r] : A.second[r - 2];
    const int i = 2 * (r % 2);
    const float diagonal = __shfl_sync(0xffffffffu, odd ? c[i + 1] : c[i], from);
    square = lane / 8 == r ? diagonal : square;
  }
  return p.l2norm ? rsqrtf(square + static_cast<float>(kNormEpsilon)) : 1.0f;
}

/// T = (I + A)^-1 with A_ij = beta_i <k_i, k_j> / (|k_i| |k_j|). The blocks on the diagonal by substitution, a lane a
/// column; the one below is -T_1 A_10 T_0. T is rounded as it is: its diagonal of ones, scaled by a norm, would be
/// rounded too.
__device__ __forceinline__ void store_inverse(Stage& stage, Triangle (&triangle)[2], TriangularProducts& A, float beta,
                                              float key_norm, int lane) {
  constexpr uint32_t kAll = 0xffffffffu;
  const int row = lane / 4, column = 2 * (lane % 4);
  float row_factor[2][2];  // [block][rows `row`, + 8]
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int i = block * kBlock + row + 8 * lower;
      row_factor[block][lower] = __shfl_sync(kAll, beta * key_norm, i);
    }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int j = 8 * n + column + odd;
      const float first = __shfl_sync(kAll, key_norm, j), second = __shfl_sync(kAll, key_norm, kBlock + j);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = 2 * lower + odd;
        triangle[0].at[j][row + 8 * lower] = row_factor[0][lower] * first * A.first[n][i];
        triangle[1].at[j][row + 8 * lower] = row_factor[1][lower] * second * A.second[n][i];
        A.below[n][i] *= row_factor[1][lower] * first;
      }
    }
  __syncwarp();
  {
    float t[kBlock];
    inverse_column(t, triangle[lane / kBlock].at, lane % kBlock);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kBlock; ++i) triangle[lane / kBlock].at[i][lane % kBlock] = t[i];
  }
  __syncwarp();
  const auto take_block = [&](float(&T)[2][4], int block) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float2 pair = *reinterpret_cast<const float2*>(&triangle[block].at[row + 8 * lower][8 * n + column]);
        T[n][2 * lower] = pair.x;
        T[n][2 * lower + 1] = pair.y;
      }
    store_block(stage, block * kBlock, block * kBlock, T, lane);
  };
  float T[2][4], inner[2][4], below[2][4];
  take_block(T, 0);
  multiply_blocks(inner, A.below, T);
  take_block(T, 1);
  multiply_blocks(below, T, inner);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) below[n][i] = -below[n][i];
  store_block(stage, kBlock, 0, below, lane);
}

/// An inverting warp's chunks.
__device__ __forceinline__ void invert_chunks(const Params& p, const Task& task, Shared& shared, int inverter) {
#pragma unroll 1
  for (int chunk = inverter; chunk < task.chunks; chunk += kInverters) {
    int lane = thread_of_cta() % 32;
    Stage& stage = shared.stage[chunk % kStages];
    const Operands& operands = shared.operands[chunk % kOperands];
    const int64_t token = task.sequence.begin + chunk * kChunk + lane;
    const bool valid = lane < task.valid_tokens(chunk);
    const uint32_t bits = valid ? beta_bits(p, token_offset(p.beta, task.sequence.batch, token, task.head)) : 0;
    wait_barrier(&shared.scaled[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);

    TriangularProducts A = triangular_products(stage.half[0].k, operands.left, operands, lane);
    arrive_as_warp(&shared.consumed[chunk % kOperands], lane);
    lane = thread_of_cta() % 32;
    const float key_norm = inverse_key_norm(p, A, lane);
    const float beta = valid ? activate_beta(p, bits) : 0.0f;  // behind the sequence nothing is written to the state
    stage.beta[lane] = beta;
    stage.beta_norm[lane] = beta * key_norm * (lane < kBlock ? 1.0f / kShiftFactor : 1.0f);
    stage.key_norm[lane] = key_norm;
    store_inverse(stage, shared.triangle[inverter], A, beta, key_norm, lane);
    fence_to_async_proxy();
    arrive_as_warp(&shared.inverted[chunk % kStages], lane);
  }
}

/// P_ij = <q_i, k_j> for j <= i, without the norms: those of k are in U, those of q wait until the output. Rows of
/// block 0 are shifted like q.
__device__ __forceinline__ void store_scores(Stage& stage, TriangularProducts& P, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool above = 8 * n + 2 * (lane % 4) + i % 2 > lane / 4 + 8 * (i / 2);
      P.first[n][i] = above ? 0.0f : P.first[n][i] * kShiftFactor;
      P.second[n][i] = above ? 0.0f : P.second[n][i];
    }
  store_block(stage, 0, kChunk, P.first, lane);
  store_block(stage, kBlock, kChunk, P.below, lane);
  store_block(stage, kBlock, kChunk + kBlock, P.second, lane);
}

/// scale / |q| of token `lane` of the chunk.
__device__ __forceinline__ float query_factor(const Params& p, const Operands& operands, int lane) {
  float square = 0;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) square += operands.query_square_sum[slice][lane];
  return p.scale * (p.l2norm ? rsqrtf(square + static_cast<float>(kNormEpsilon)) : 1.0f);
}

/// The scoring warp.
__device__ __forceinline__ void score_chunks(const Params& p, const Task& task, Shared& shared) {
#pragma unroll 1
  for (int chunk = 0; chunk < task.chunks; ++chunk) {
    const int lane = thread_of_cta() % 32;
    Stage& stage = shared.stage[chunk % kStages];
    const Operands& operands = shared.operands[chunk % kOperands];
    wait_barrier(&shared.scaled[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);

    const float factor = query_factor(p, operands, lane);
    TriangularProducts P = triangular_products(stage.half[0].q, operands.left + kBlock * 128, operands, lane);
    arrive_as_warp(&shared.consumed[chunk % kOperands], lane);
    stage.query_norm[lane] = factor * (lane < kBlock ? 1.0f / kShiftFactor : 1.0f);
    store_scores(stage, P, lane);
    fence_to_async_proxy();
    arrive_as_warp(&shared.scored[chunk % kStages], lane);
  }
}

}  // namespace flash_kda::cuda::fused

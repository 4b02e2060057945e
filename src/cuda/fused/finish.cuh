// The triangular part of preparing a chunk: the products of Operands, from them P and T = (I + A)^-1; token scalars.
#pragma once

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/triangular_inverse.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

/// The blocks of A and P on and below the diagonal, as C fragments, without norms and beta.
struct Products {
  float A0[2][4], A1[2][4], A10[2][4], P0[2][4], P1[2][4], P10[2][4];
};

/// c += a * b^T for 16x16 matrices; b as loaded by load_matrix_x4 with (rows 0-7, columns 0-7), (0-7, 8-15), (8-15,
/// 0-7), (8-15, 8-15).
__device__ __forceinline__ void multiply(float (&c)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
  multiply_accumulate(c[0], a, b[0], b[1]);
  multiply_accumulate(c[1], a, b[2], b[3]);
}

__device__ __forceinline__ Products triangular_products(const Stage& stage, const Operands& operands, int lane) {
  Products c = {};
  const auto left_offset = static_cast<uint32_t>(tile_offset(lane % 16, 8 * (lane / 16)));
  const auto right_offset = static_cast<uint32_t>(tile_offset(lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)));
  const auto left = [&](const unsigned char* tile, int half_bytes, int slice) {
    return shared_address(tile) + slice / 4 * half_bytes + (left_offset ^ slice % 4 << 5);
  };
  const auto right = [&](int slice, int tile) {
    return shared_address(operands.right) + slice / 4 * Operands::kRightHalf + tile * kBlock * 128 +
           (right_offset ^ slice % 4 << 5);
  };
#pragma unroll 4
  for (int slice = 0; slice < kSlices; ++slice) {
    uint32_t k[4], q[4], b[4];
    load_matrix_x4(k, left(stage.k, kHalfBytes, slice));
    load_matrix_x4(q, left(stage.q, kHalfBytes, slice));
    load_matrix_x4(b, right(slice, 0));
    multiply(c.A0, k, b);
    multiply(c.P0, q, b);
  }
#pragma unroll 2
  for (int slice = 0; slice < kSlices; ++slice) {
    uint32_t k[4], q[4], below[4], b[4];
    load_matrix_x4(k, left(operands.left, Operands::kLeftHalf, slice));
    load_matrix_x4(q, left(operands.left, Operands::kLeftHalf, slice) + kBlock * 128);
    load_matrix_x4(below, right(slice, 1));
    load_matrix_x4(b, right(slice, 2));
    multiply(c.A10, k, below);
    multiply(c.P10, q, below);
    multiply(c.A1, k, b);
    multiply(c.P1, q, b);
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

/// P_ij = <q_i, k_j> for j <= i, without the norms: those of k are in U, those of q wait until the output. Rows of
/// block 0 are shifted like q.
__device__ __forceinline__ void store_scores(Stage& stage, Products& c, int lane) {
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool above = 8 * n + 2 * (lane % 4) + i % 2 > lane / 4 + 8 * (i / 2);
      c.P0[n][i] = above ? 0.0f : c.P0[n][i] * kShiftFactor;
      c.P1[n][i] = above ? 0.0f : c.P1[n][i];
    }
  store_block(stage, 0, kChunk, c.P0, lane);
  store_block(stage, kBlock, kChunk, c.P10, lane);
  store_block(stage, kBlock, kChunk + kBlock, c.P1, lane);
}

/// Norms and beta of token `lane`.
struct TokenScalars {
  float beta, key_norm, query_norm;  ///< the norms inverted; the query's times scale
};

__device__ __forceinline__ TokenScalars token_scalars(const Params& p, const Operands& operands, float beta, int lane) {
  float norm[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) norm[i] += operands.square_sum[slice][i][lane];
    norm[i] = p.l2norm ? rsqrtf(norm[i] + static_cast<float>(kNormEpsilon)) : 1.0f;
  }
  return {beta, norm[1], norm[0] * p.scale};
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

/// T = (I + A)^-1 with A_ij = beta_i <k_i, k_j> / (|k_i| |k_j|). The blocks on the diagonal by substitution, a lane a
/// column; the one below is -T_1 A_10 T_0. T is rounded as it is: its diagonal of ones, scaled by a norm, would be
/// rounded too.
__device__ __forceinline__ void store_inverse(Stage& stage, Triangle (&triangle)[2], Products& c,
                                              const TokenScalars& token, int lane) {
  constexpr uint32_t kAll = 0xffffffffu;
  const int row = lane / 4, column = 2 * (lane % 4);
  float row_factor[2][2];  // [block][rows `row`, + 8]
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int i = block * kBlock + row + 8 * lower;
      row_factor[block][lower] = __shfl_sync(kAll, token.beta * token.key_norm, i);
    }
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int j = 8 * n + column + odd;
      const float first = __shfl_sync(kAll, token.key_norm, j), second = __shfl_sync(kAll, token.key_norm, kBlock + j);
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int i = 2 * lower + odd;
        triangle[0].at[j][row + 8 * lower] = row_factor[0][lower] * first * c.A0[n][i];
        triangle[1].at[j][row + 8 * lower] = row_factor[1][lower] * second * c.A1[n][i];
        c.A10[n][i] *= row_factor[1][lower] * first;
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
  float T[2][2][4];  // [block]
#pragma unroll
  for (int block = 0; block < 2; ++block) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const float2 pair = *reinterpret_cast<const float2*>(&triangle[block].at[row + 8 * lower][8 * n + column]);
        T[block][n][2 * lower] = pair.x;
        T[block][n][2 * lower + 1] = pair.y;
      }
    store_block(stage, block * kBlock, block * kBlock, T[block], lane);
  }
  float inner[2][4], below[2][4];
  multiply_blocks(inner, c.A10, T[0]);
  multiply_blocks(below, T[1], inner);
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) below[n][i] = -below[n][i];
  store_block(stage, kBlock, 0, below, lane);
}

/// The triangular part of chunk `chunk`, called by a warp.
__device__ __forceinline__ void finish_chunk(const Params& p, const Task& task, Shared& shared, int chunk, int lane) {
  Stage& stage = shared.stage[chunk % kStages];
  const Operands& operands = shared.operands[chunk % kOperands];
  const bool valid = lane < task.valid_tokens(chunk);
  const int64_t token0 = task.sequence.begin + chunk * kChunk;
  float beta = valid ? raw_beta(p, token_offset(p.beta, task.sequence.batch, token0 + lane, task.head)) : 0.0f;
  wait_barrier(&shared.scaled[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);

  Products products = triangular_products(stage, operands, lane);
  const TokenScalars token = token_scalars(p, operands, valid ? activate_beta(p, beta) : 0.0f, lane);
  __syncwarp();
  if (lane == 0)
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.consumed[chunk % kOperands]);
  stage.beta[lane] = token.beta;
  const float shift_back = lane < kBlock ? 1.0f / kShiftFactor : 1.0f;
  stage.beta_norm[lane] = token.beta * token.key_norm * shift_back;
  stage.key_norm[lane] = token.key_norm;
  stage.query_norm[lane] = token.query_norm * shift_back;
  store_scores(stage, products, lane);
  store_inverse(stage, shared.triangle[chunk % kFinishers], products, token, lane);
  fence_to_async_proxy();
  __syncwarp();
  if (lane == 0)
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.ready[chunk % kStages]);
}

}  // namespace flash_kda::cuda::fused

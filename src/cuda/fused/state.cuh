// The state warpgroups of the fused kernel: 64 rows (V) of the transposed state each, in fp32 accumulators, walk the
// chunks.
//
//   R = beta (v - S K~^T), U = R T^T, O = S Q~^T + U P^T, S = S diag(e) + U K_end         [64 rows, 32 tokens]
//
// S, R and U pass from accumulators to register operands without leaving the thread; K~, Q~, K_end, T and P are read
// from the stage. q and k are raw there, so every product with k gets its 1/|k| here: beta_norm and key_norm; scale/|q|
// comes last.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/common/state_fragment.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/load.cuh"

namespace flash_kda::cuda::fused {

/// Two neighbouring 8-column C fragments of an accumulator become the register operand over those 16 columns.
__device__ __forceinline__ void to_operand(uint32_t (&a)[4], const float* c) {
#pragma unroll
  for (int r = 0; r < 4; ++r) a[r] = pack_bf16(c[2 * r], c[2 * r + 1]);
}

template <int kStateGroups>
__device__ __forceinline__ void walk_sequence(const Params& p, const InputMaps& maps, const Task& task, Shared& shared,
                                              int group, int warp, int lane) {
  const int row0 = task.row0 + group * kHalf, member = lane % 4;
  StateFragment fragment = {};
  if (task.slots.read >= 0) load_state(fragment, p.initial_state, task.slots.read, task.head, row0 + 16 * warp, lane);
  float S[2][32];  // columns (K) 0 ... 63 and 64 ... 127
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) S[j / 8][j % 8 * 4 + i] = fragment.S[j][i];
  uint32_t operand[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) to_operand(operand[i], &S[i / 4][i % 4 * 8]);

  // Where this lane points ldmatrix.trans in a half of v: matrices (tokens 0-7, rows 0-7), (0-7, 8-15), (8-15, 0-7),
  // (8-15, 8-15) of the warp's 16 rows become fragments (tokens 0-7: upper, lower rows), (tokens 8-15: upper, lower).
  const int matrix_token = lane % 8 + 8 * (lane / 16), matrix_row = 16 * warp + 8 * (lane / 8 % 2);

  // The first thread loads: a chunk takes the stage of the one kStages before it.
  const bool loads = group == 0 && warp == 0 && lane == 0;
  if (loads)
    for (int chunk = 0; chunk < kStages && chunk < task.chunks; ++chunk)
      load_chunk<kStateGroups>(maps, task, shared, chunk);

  for (int chunk = 0; chunk < task.chunks; ++chunk) {
    Stage& stage = shared.stage[chunk % kStages];
    wait_barrier(&shared.scaled[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);

    const SwizzledOperand q(shared_address(stage.q)), k(shared_address(stage.k)), restored(shared_address(stage.g)),
        square(shared_address(stage.square));

    float R[16], O[16];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_n32(R, operand[i], k.at(i / 4 * kHalfBytes + i % 4 * 32), i > 0);
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 8; ++i) multiply_n32(O, operand[i], q.at(i / 4 * kHalfBytes + i % 4 * 32), i > 0);
    wgmma_commit();
    uint32_t v[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_matrix_x4_transposed(
          v[i], shared_address(stage.v) + group * kHalfBytes + tile_offset(16 * i + matrix_token, matrix_row));
    const int valid = task.valid_tokens(chunk);
    if (valid < kChunk) {  // tokens behind the sequence have beta = 0, and v that is not theirs
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int token = 16 * i + 8 * (r / 2) + 2 * member;
          v[i][r] = token + 1 < valid ? v[i][r] : token < valid ? v[i][r] & 0xffffu : 0;
        }
    }
    wgmma_wait<1>();
    wait_barrier(&shared.ready[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);

    uint32_t U_operand[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 beta = *reinterpret_cast<const float2*>(&stage.beta[8 * j + 2 * member]);
      const float2 beta_norm = *reinterpret_cast<const float2*>(&stage.beta_norm[8 * j + 2 * member]);
      const uint32_t upper = v[j / 2][2 * (j % 2)], lower = v[j / 2][2 * (j % 2) + 1];
      R[4 * j + 0] = beta.x * low_bf16(upper) - beta_norm.x * R[4 * j + 0];
      R[4 * j + 1] = beta.y * high_bf16(upper) - beta_norm.y * R[4 * j + 1];
      R[4 * j + 2] = beta.x * low_bf16(lower) - beta_norm.x * R[4 * j + 2];
      R[4 * j + 3] = beta.y * high_bf16(lower) - beta_norm.y * R[4 * j + 3];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) to_operand(U_operand[i], &R[8 * i]);
    float U[16];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_n32(U, U_operand[i], square.at(i * 32), i > 0);
    wgmma_commit();
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 e = *reinterpret_cast<const float2*>(&stage.decay[64 * h + 8 * j + 2 * member]);
        S[h][4 * j + 0] *= e.x;
        S[h][4 * j + 1] *= e.y;
        S[h][4 * j + 2] *= e.x;
        S[h][4 * j + 3] *= e.y;
      }
    wgmma_wait<0>();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 key_norm = *reinterpret_cast<const float2*>(&stage.key_norm[8 * j + 2 * member]);
      U[4 * j + 0] *= key_norm.x;
      U[4 * j + 1] *= key_norm.y;
      U[4 * j + 2] *= key_norm.x;
      U[4 * j + 3] *= key_norm.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) to_operand(U_operand[i], &U[8 * i]);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        multiply_n64_transposed(S[h], U_operand[i], restored.at(h * kHalfBytes + i * kBlock * 128));
    wgmma_commit();
#pragma unroll
    for (int i = 0; i < 2; ++i) multiply_n32(O, U_operand[i], square.at(64 + i * 32), true);
    wgmma_commit();
    wgmma_wait<1>();
#pragma unroll
    for (int i = 0; i < 8; ++i) to_operand(operand[i], &S[i / 4][i % 4 * 8]);
    float2 query_norm[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) query_norm[j] = *reinterpret_cast<const float2*>(&stage.query_norm[8 * j + 2 * member]);
    wgmma_wait<0>();

    // ---- output ---- through the place of v, of which every warp has read what it writes here
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int j = 2 * i + r / 2;
        packed[r] = pack_bf16(O[8 * i + 2 * r] * query_norm[j].x, O[8 * i + 2 * r + 1] * query_norm[j].y);
      }
      store_matrix_x4_transposed(
          shared_address(stage.v) + group * kHalfBytes + tile_offset(16 * i + matrix_token, matrix_row), packed);
    }
    named_barrier(1 + group, kWarpgroup);
    const int token = (32 * warp + lane) / 8, column = lane % 8 * 8;
    __nv_bfloat16* const target = shared.out + (chunk * kChunk + token) * p.out.stride_token + row0 + column;
    uint4 piece[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      piece[i] = *reinterpret_cast<const uint4*>(&stage.v[group * kHalfBytes + tile_offset(token + 16 * i, column)]);
    __syncwarp();
    if (lane == 0)
      ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.empty[chunk % kStages]);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (token + 16 * i < valid) *reinterpret_cast<uint4*>(target + 16 * i * p.out.stride_token) = piece[i];
    if (const int next = chunk + kStages; loads && next < task.chunks) {
      wait_barrier(&shared.empty[chunk % kStages], static_cast<uint32_t>(chunk / kStages) & 1);
      load_chunk<kStateGroups>(maps, task, shared, next);
    }
    __syncwarp();
  }
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment.S[j][i] = S[j / 8][j % 8 * 4 + i];
  if (task.slots.write >= 0) store_state(fragment, p.final_state, task.slots.write, task.head, row0 + 16 * warp, lane);
}

}  // namespace flash_kda::cuda::fused

// The state warpgroups of the fused kernel: 64 rows (V) of the transposed state each, in fp32 accumulators, walk the
// chunks.
//
//   R = beta (v - S K~^T), U = R T^T, O = S Q~^T + U P^T, S = S diag(d) + U K_end   [64 rows, 32 tokens]
//
// S, R and U pass from accumulators to register operands without leaving the thread; K~, Q~, K_end, T and P are read
// from the stage. q and k are raw there: 1/|k| is in T and in what makes R, scale/|q| comes last. The factors of kShift
// in K_end and T are each other's inverse.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/common/state_fragment.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/fused/config.h"

namespace flash_kda::cuda::fused {

__device__ __forceinline__ void walk_sequence(const Params& p, const Task& task, Shared& shared, int group, int warp,
                                              int lane) {
  const int row0 = group * kHalf, member = lane % 4;
  StateFragment fragment = {};
  if (task.slots.read >= 0) load_state(fragment, p.initial_state, task.slots.read, task.head, row0 + 16 * warp, lane);
  float S[2][32];  // columns (K) 0 ... 63 and 64 ... 127
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) S[j / 8][j % 8 * 4 + i] = fragment.S[j][i];
  uint32_t operand[8][4];
#pragma unroll
  for (int i = 0; i < 8; ++i) to_left_operand(operand[i], &S[i / 4][i % 4 * 8]);

  // Where this lane points ldmatrix.trans in a half of v: matrices (tokens 0-7, rows 0-7), (0-7, 8-15), (8-15, 0-7),
  // (8-15, 8-15) of the warp's 16 rows become fragments (tokens 0-7: upper, lower rows), (tokens 8-15: upper, lower).
  const uint32_t values_offset =
      group * kHalfBytes + tile_offset(lane % 8 + 8 * (lane / 16), 16 * warp + 8 * (lane / 8 % 2));

#pragma unroll 1
  for (int chunk = 0; chunk < task.chunks; ++chunk) {
    Stage& stage = shared.stage[chunk % kStages];
    const uint32_t parity = static_cast<uint32_t>(chunk / kStages) & 1;
    const SwizzledOperand keys_queries(shared_address(stage.half)), end_keys(shared_address(stage.g)),
        square(shared_address(stage.square));

    wait_barrier(&shared.scaled[chunk % kStages], parity);
    const auto decay_half = [&](int h) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 decay = *reinterpret_cast<const float2*>(&stage.decay[64 * h + 8 * j + 2 * member]);
        S[h][4 * j + 0] *= decay.x;
        S[h][4 * j + 1] *= decay.y;
        S[h][4 * j + 2] *= decay.x;
        S[h][4 * j + 3] *= decay.y;
      }
    };
    float R_O[32];
    wgmma_fence();
    start_product_n64(R_O, operand[0], keys_queries.at(0));
#pragma unroll
    for (int i = 1; i < 8; ++i)
      multiply_n64(R_O, operand[i], keys_queries.at(i / 4 * static_cast<uint32_t>(sizeof(KeysQueries)) + i % 4 * 32));
    wgmma_commit();
    wgmma_wait<0>();
    uint32_t v[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      load_matrix_x4_transposed(v[i], shared_address(stage.v) + values_offset + i * kBlock * 128);
    const int valid = task.valid_tokens(chunk);
    if (valid < kChunk) {  // tokens behind the sequence have beta = 0, and v that is not theirs
      const int first = 2 * (forget(lane) & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int token = first + 16 * i + 8 * (r / 2);
          v[i][r] = token + 1 < valid ? v[i][r] : token < valid ? v[i][r] & 0xffffu : 0;
        }
    }
    wait_barrier(&shared.inverted[chunk % kStages], parity);
    uint32_t U_operand[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 beta = *reinterpret_cast<const float4*>(stage.beta[8 * j + 2 * member]);  // of two tokens
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int r = 2 * (j % 2) + lower;
        U_operand[j / 2][r] = pack_bf16(beta.x * low_bf16(v[j / 2][r]) - beta.y * R_O[4 * j + 2 * lower],
                                        beta.z * high_bf16(v[j / 2][r]) - beta.w * R_O[4 * j + 2 * lower + 1]);
      }
    }
    float U[16];
    wgmma_fence();
    start_product_n32_transposed(U, U_operand[0], square.at(0));
    multiply_n32_transposed(U, U_operand[1], square.at(kBlock * 128));
    wgmma_commit();
    decay_half(0);
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; ++i) to_left_operand(U_operand[i], &U[8 * i]);
    wait_barrier(&shared.scored[chunk % kStages], parity);
    float P_U[16];
    wgmma_fence();
    start_product_n32(P_U, U_operand[0], square.at(64));
    multiply_n32(P_U, U_operand[1], square.at(96));
    wgmma_commit();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (h == 1) decay_half(1);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 2; ++i)
        multiply_n64_transposed(S[h], U_operand[i], end_keys.at(h * kHalfBytes + i * kBlock * 128));
    }
    wgmma_commit();
    wgmma_wait<1>();

    // ---- output ---- into the place of v, of which this warp alone has read what it writes here
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t packed[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 norm =  // of two tokens
            *reinterpret_cast<const float4*>(stage.query_norm[16 * i + 8 * (r / 2) + 2 * member]);
        const int j = 8 * i + 2 * r;
        packed[r] = pack_bf16(R_O[16 + j] * norm.x + P_U[j] * norm.y, R_O[17 + j] * norm.z + P_U[j + 1] * norm.w);
      }
      store_matrix_x4_transposed(shared_address(stage.v) + values_offset + i * kBlock * 128, packed);
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 8; ++i) to_left_operand(operand[i], &S[i / 4][i % 4 * 8]);
    arrive_as_warp(&shared.written[chunk % kStages], lane);
  }
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) fragment.S[j][i] = S[j / 8][j % 8 * 4 + i];
  if (task.slots.write < 0) return;
  store_state(fragment, p.final_state, task.slots.write, task.head, row0 + 16 * warp, lane);
}

}  // namespace flash_kda::cuda::fused

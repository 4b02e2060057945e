// Second kernel: walks the tiles of one sequence and value head, with `rows` rows (V) of the state in a CTA.
//
//   load warp    a tile's image by one bulk copy and its rows of v, kStages tiles ahead
//   math warps   16 rows of the state each, in fp32 registers, kept transposed against the formulas of
//   docs/operator.md:
//                  R = beta (v - S K~^T), U = R T^T, O = S Q~^T + U P^T, S = S diag(e) + U K_end      [rows, 16 tokens]
//                so that S, R and U pass from accumulators to left operands without leaving the thread
//   store warp   finished rows of out by bulk copies, one a token, only those that belong to the sequence
//
// Stages and output buffers travel between the roles through full/empty barriers.
#pragma once

#include "common/sequence.h"
#include "cuda/common/longest_first.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/state_fragment.cuh"
#include "cuda/two_kernel/config.h"

namespace flash_kda::cuda::two_kernel {

inline constexpr int kMaxThreads = recurrence_threads(kHeadDim);

/// c += a * tile^T over 16 columns of a swizzled [16 tokens, 128] tile, from column `column` on. c[i] is tokens 8i ...
/// 8i + 7.
__device__ __forceinline__ void multiply_tile(float (&c)[2][4], const uint32_t (&a)[4], uint32_t tile, int column,
                                              int lane) {
  uint32_t b[4];
  load_matrix_x4(b, tile + tile_offset(lane % 8 + 8 * (lane / 16), column + 8 * (lane / 8 % 2)));
  multiply_accumulate(c[0], a, b[0], b[1]);
  multiply_accumulate(c[1], a, b[2], b[3]);
}

/// c += a * square^T for a swizzled [16, 16] matrix.
__device__ __forceinline__ void multiply_square(float (&c)[2][4], const uint32_t (&a)[4], uint32_t square, int lane) {
  uint32_t b[4];
  load_matrix_x4(b, square + square_offset(lane % 8 + 8 * (lane / 16), 8 * (lane / 8 % 2)));
  multiply_accumulate(c[0], a, b[0], b[1]);
  multiply_accumulate(c[1], a, b[2], b[3]);
}

__global__ void __launch_bounds__(kMaxThreads, 1) recurrence(const __grid_constant__ Params p, int split) {
  extern __shared__ __align__(128) unsigned char storage[];
  __shared__ uint64_t full[kStages], empty[kStages], output_full[kOutputBuffers], output_empty[kOutputBuffers];

  const int rows = p.V / split, math_warps = rows / kRowsPerWarp;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const auto block = static_cast<int64_t>(blockIdx.x);
  const int part = static_cast<int>(block % split), head = static_cast<int>(block / split % p.HV);
  // prepare is complete, and so is what it waited for: workspace, inputs, states, indices.
  cudaGridDependencySynchronize();
  const int64_t n = sequence_of_rank(p, block / split / p.HV);
  const Sequence sequence = sequence_of(p, n);
  const Slots slots = slots_of(p, n);
  const int64_t tiles = tiles_of(sequence.length);
  const int row0 = part * rows;  // first row of the state, and first column of v and out, of this CTA
  const RecurrenceShared layout{rows};
  const auto valid_tokens = [&](int64_t tile) {
    const int64_t left = sequence.length - tile * kTile;
    return static_cast<int>(left < kTile ? left : kTile);
  };
  const auto global_row = [&](const TokenTensor& x, int64_t tile, int token) {
    return static_cast<__nv_bfloat16*>(x.data) +
           token_offset(x, sequence.batch, sequence.begin + tile * kTile + token, head) + row0;
  };

  if (slots.padded) {
    for (int64_t i = thread; i < sequence.length * rows; i += blockDim.x)
      global_row(p.out, 0, 0)[i / rows * p.out.stride_token + i % rows] = __float2bfloat16_rn(0.0f);
    return;
  }

  if (thread == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(&full[i], 1);
      ptx::mbarrier_init(&empty[i], 32 * math_warps);
    }
    for (int i = 0; i < kOutputBuffers; ++i) {
      ptx::mbarrier_init(&output_full[i], math_warps);
      ptx::mbarrier_init(&output_empty[i], 1);
    }
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  }
  __syncthreads();

  if (warp == math_warps) {  // ---- load warp ----
    const auto* const images =
        static_cast<const unsigned char*>(p.workspace) + image_offset(first_slot(p, n, sequence.begin), head, p.HV);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int stage = static_cast<int>(tile % kStages), valid = valid_tokens(tile);
      if (tile >= kStages) wait_barrier(&empty[stage], static_cast<uint32_t>(tile / kStages - 1) & 1);
      if (lane == 0) {
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[stage],
                                       Image::bytes + valid * rows * 2);
        bulk_load(storage + layout.image(stage), images + image_offset(tile, 0, p.HV), Image::bytes, &full[stage]);
      }
      __syncwarp();
      if (lane < valid)
        bulk_load(storage + layout.value(stage) + lane * value_pitch(rows), global_row(p.v, tile, lane), rows * 2,
                  &full[stage]);
    }
  } else if (warp == math_warps + 1) {  // ---- store warp ----
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int buffer = static_cast<int>(tile % kOutputBuffers);
      wait_barrier(&output_full[buffer], static_cast<uint32_t>(tile / kOutputBuffers) & 1);
      if (lane < valid_tokens(tile))
        bulk_store(global_row(p.out, tile, lane), storage + layout.output(buffer) + lane * value_pitch(rows), rows * 2);
      ptx::cp_async_bulk_commit_group();
      ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &output_empty[buffer]);
    }
  } else {  // ---- math warps ----
    const int warp_row = warp * kRowsPerWarp, member = lane % 4;
    StateFragment state = {};
    if (slots.read >= 0) load_state(state, p.initial_state, slots.read, head, row0 + warp_row, lane);
    auto& S = state.S;
    // Where lane l points ldmatrix.trans and stmatrix.trans in a [16 tokens, rows] tile: matrices (tokens 0-7, rows
    // 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15) become fragments (tokens 0-7: upper, lower rows), (tokens 8-15:
    // upper, lower).
    const int value_offset = (lane % 8 + 8 * (lane / 16)) * value_pitch(rows) + (warp_row + 8 * (lane / 8 % 2)) * 2;

    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int stage = static_cast<int>(tile % kStages), buffer = static_cast<int>(tile % kOutputBuffers);
      const int valid = valid_tokens(tile);
      const unsigned char* const image = storage + layout.image(stage);
      const uint32_t image_address = shared_address(image);
      wait_barrier(&full[stage], static_cast<uint32_t>(tile / kStages) & 1);

      // S K~^T and S Q~^T, the former in two independent halves: the chain waits for it.
      float predicted[2][2][4] = {}, O[2][4] = {};
      uint32_t a[8][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) to_left_operand(a[i], S[2 * i], S[2 * i + 1]);
#pragma unroll
      for (int i = 0; i < 8; ++i) multiply_tile(predicted[i % 2], a[i], image_address + Image::k_decayed, 16 * i, lane);
#pragma unroll
      for (int i = 0; i < 8; ++i) multiply_tile(O, a[i], image_address + Image::q_decayed, 16 * i, lane);

      // R = beta (v - S K~^T), zero for tokens behind the sequence: their v was not loaded.
      uint32_t v[4], operand[4];
      load_matrix_x4_transposed(v, shared_address(storage + layout.value(stage)) + value_offset);
      float R[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * i + 2 * member;
        const float2 beta = *reinterpret_cast<const float2*>(image + Image::beta + token * 4);
        R[i][0] = beta.x * (low_bf16(v[2 * i]) - predicted[0][i][0] - predicted[1][i][0]);
        R[i][1] = beta.y * (high_bf16(v[2 * i]) - predicted[0][i][1] - predicted[1][i][1]);
        R[i][2] = beta.x * (low_bf16(v[2 * i + 1]) - predicted[0][i][2] - predicted[1][i][2]);
        R[i][3] = beta.y * (high_bf16(v[2 * i + 1]) - predicted[0][i][3] - predicted[1][i][3]);
        if (token >= valid) R[i][0] = R[i][2] = 0.0f;
        if (token + 1 >= valid) R[i][1] = R[i][3] = 0.0f;
      }
      to_left_operand(operand, R[0], R[1]);

      // U = R T^T
      float U[2][4] = {};
      multiply_square(U, operand, image_address + Image::inverse, lane);
      to_left_operand(operand, U[0], U[1]);

      // S = S diag(e) + U K_end
#pragma unroll
      for (int j = 0; j < 16; j += 2) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, image_address + Image::k_restored + tile_offset(lane % 16, 8 * (j + lane / 16)));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 e = *reinterpret_cast<const float2*>(image + Image::g_total + (8 * (j + i) + 2 * member) * 4);
          float(&s)[4] = S[j + i];
          s[0] *= e.x;
          s[1] *= e.y;
          s[2] *= e.x;
          s[3] *= e.y;
          multiply_accumulate(s, operand, b[2 * i], b[2 * i + 1]);
        }
      }

      // O = S Q~^T + U P^T
      multiply_square(O, operand, image_address + Image::Mqk, lane);
      ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &empty[stage]);

      const uint32_t packed[4] = {pack_bf16(O[0][0], O[0][1]), pack_bf16(O[0][2], O[0][3]), pack_bf16(O[1][0], O[1][1]),
                                  pack_bf16(O[1][2], O[1][3])};
      if (tile >= kOutputBuffers)
        wait_barrier(&output_empty[buffer], static_cast<uint32_t>(tile / kOutputBuffers - 1) & 1);
      store_matrix_x4_transposed(shared_address(storage + layout.output(buffer)) + value_offset, packed);
      fence_to_async_proxy();
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &output_full[buffer]);
    }
    if (slots.write >= 0) store_state(state, p.final_state, slots.write, head, row0 + warp_row, lane);
  }
}

}  // namespace flash_kda::cuda::two_kernel

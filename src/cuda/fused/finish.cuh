// The finishing warpgroup of the fused kernel: the triangular products of a chunk as products of 64 rows (keys of block
// 0 and 1, queries of block 0 and 1, a warp each), then the keys' warps make the blocks of T = (I + A)^-1 on the
// diagonal and what the state needs to know of the keys, the queries' warps P and the norms of the queries. The latter
// also move data, and the first of them makes the block of T below the diagonal: all four are busy for about as long.
#pragma once

#include <cstddef>

#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/state_fragment.cuh"
#include "cuda/common/triangular_inverse.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/fused/config.h"
#include "cuda/fused/launch.h"
#include "cuda/fused/move.cuh"
#include "cuda/fused/task.cuh"

namespace flash_kda::cuda::fused {

/// C fragments of this warp's 16 rows: of block 0 with the keys of block 0 (own), of block 1 with the keys of both as
/// seen from the chunk's end (seen). The other one means nothing.
struct BlockProducts {
  float own[8], seen[16];
};

/// Called by the warpgroup.
__device__ __forceinline__ BlockProducts block_products(const Stage& stage, const Operands& operands) {
  const SwizzledOperand first(shared_address(stage.half)), second(shared_address(operands.half)),
      seen(shared_address(stage.g));
  BlockProducts c;
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    const uint32_t piece = i % 4 * 32;
    const uint64_t left = first.at(i / 4 * static_cast<uint32_t>(sizeof(KeysQueries)) + piece);
    const uint64_t right = second.at(i / 4 * static_cast<uint32_t>(sizeof(OperandsHalf)) + piece);
    static_assert(offsetof(OperandsHalf, first_down) == 0);
    if (i == 0)
      start_product_n16(c.own, left, right);
    else
      multiply_n16(c.own, left, right);
  }
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    const uint32_t piece = i % 4 * 32;
    const uint64_t left = second.at(i / 4 * static_cast<uint32_t>(sizeof(OperandsHalf)) + piece);
    const uint64_t right = seen.at(i / 4 * kHalfBytes + piece);
    if (i == 0)
      start_product_n32(c.seen, left, right);
    else
      multiply_n32(c.seen, left, right);
  }
  wgmma_commit();
  wgmma_wait<0>();
  return c;
}

/// Address of the row that lane `lane` gives for a 16x16 block of the square at (row, column), matrices in the order of
/// a left operand: (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15).
__device__ __forceinline__ uint32_t block_place(const Stage& stage, int row, int column, int lane) {
  return shared_address(stage.square) + static_cast<uint32_t>(tile_offset(row + lane % 16, column + lane / 16 * 8));
}

/// c as the sum of two bf16 operands.
__device__ __forceinline__ void split_operand(uint32_t (&high)[4], uint32_t (&low)[4], const float (&c)[8]) {
  to_left_operand(high, c);
#pragma unroll
  for (int r = 0; r < 4; ++r) low[r] = pack_bf16(c[2 * r] - low_bf16(high[r]), c[2 * r + 1] - high_bf16(high[r]));
}

/// |k|^2 of token lane % 16 of the block: the diagonal of its products, in the lanes with group / 2 == member.
__device__ __forceinline__ float key_square(const float (&c)[8], int lane) {
  const bool odd = lane / 4 % 2 == 1;
  const int from = 4 * (lane % 8) + lane % 8 / 2;
  const float upper = __shfl_sync(0xffffffffu, odd ? c[1] : c[0], from);
  const float lower = __shfl_sync(0xffffffffu, odd ? c[7] : c[6], from);
  return lane % 16 < 8 ? upper : lower;
}

/// A block of T on the diagonal, the inverse of I + c in fp32, into the stage, shifted. c: C fragments; what stands on
/// or above the diagonal is not looked at.
__device__ __forceinline__ void store_inverse(Stage& stage, Triangle& lower, const float (&c)[8], int block, int lane) {
  const int group = lane / 4, column = 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) lower.column[8 * (i / 4) + column + i % 2][group + 8 * (i / 2 % 2)] = c[i];
  __syncwarp();
  float x[kBlock];
  inverse_column(x, lower.column, lane % kBlock, 1.0f / kShiftFactor);
  if (lane < kBlock) {  // the other half of the warp has the same
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<uint4*>(&stage.square[tile_offset(block * kBlock + lane, block * kBlock + 8 * i)]) = {
          pack_bf16(x[8 * i], x[8 * i + 1]), pack_bf16(x[8 * i + 2], x[8 * i + 3]),
          pack_bf16(x[8 * i + 4], x[8 * i + 5]), pack_bf16(x[8 * i + 6], x[8 * i + 7])};
  }
  __syncwarp();
}

/// The block of T below the diagonal, -T_1 A_10 T_0, from the blocks on the diagonal as the state will use them.
/// Everything transposed, as T lies in the stage: then A_10 is the right operand as it stands.
__device__ __forceinline__ void store_block_below(Stage& stage, const BlockBelow& A_10, int lane) {
  uint32_t T_0[4], T_1[4];
  load_matrix_x4(T_0, block_place(stage, 0, 0, lane));
  load_matrix_x4_transposed(T_1, block_place(stage, kBlock, kBlock, lane));
  const uint4 upper = *reinterpret_cast<const uint4*>(A_10.high[lane]);
  const uint4 rest = *reinterpret_cast<const uint4*>(A_10.low[lane]);
  uint32_t high[4] = {upper.x, upper.y, upper.z, upper.w}, low[4] = {rest.x, rest.y, rest.z, rest.w};
  float product[8], below[8];
#pragma unroll
  for (int n = 0; n < 2; ++n) {  // rows 8n ... 8n + 7 of A_10
    float sum[4] = {};
    multiply_accumulate(sum, T_0, low[n], low[n + 2]);
    multiply_accumulate(sum, T_0, high[n], high[n + 2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) product[4 * n + i] = kShiftFactor * sum[i];
  }
  split_operand(high, low, product);
#pragma unroll
  for (int n = 0; n < 2; ++n) {  // rows 8n ... 8n + 7 of T_1
    float sum[4] = {};
    multiply_accumulate(sum, low, T_1[2 * n], T_1[2 * n + 1]);
    multiply_accumulate(sum, high, T_1[2 * n], T_1[2 * n + 1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) below[4 * n + i] = -sum[i];
  }
  uint32_t packed[4];
  to_left_operand(packed, below);
  store_matrix_x4(block_place(stage, 0, kBlock, lane), packed);
}

/// The part of a keys' warp in T = (I + A)^-1 with A_ij = beta_i <k_i, k_j> / |k_i|^2, and what the state needs to know
/// of the block's keys. T R is then 1/|k| times what it would be with A_ij = beta_i <k_i, k_j> / (|k_i| |k_j|), if R
/// is; T has ones on its diagonal either way. beta: of token lane % 16.
__device__ __forceinline__ void finish_keys(const Params& p, Stage& stage, Triangle& lower, BlockBelow& A_10,
                                            const BlockProducts& products, int block, float beta, int lane) {
  float c[8], below[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i] = block == 0 ? products.own[i] : products.seen[8 + i];
  const float key_norm =
      p.l2norm ? rsqrt_approx(key_square(c, lane) + static_cast<float>(kNormEpsilon)) : 1.0f;  // 1 / |k|
  const float factor = beta * key_norm * key_norm;
  if (lane < kBlock) {
    const int token = block * kBlock + lane;
    stage.beta[token][0] = beta * key_norm;
    stage.beta[token][1] = factor * (block == 0 ? 1.0f / kShiftFactor : 1.0f);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float row_factor = __shfl_sync(0xffffffffu, factor, lane / 4 + 8 * i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = 4 * (j / 2) + 2 * i + j % 2;
      c[at] *= row_factor;
      below[at] = products.seen[at] * row_factor;
    }
  }
  if (block == 1) {
    uint32_t high[4], low[4];
    split_operand(high, low, below);
    *reinterpret_cast<uint4*>(A_10.high[lane]) = {high[0], high[1], high[2], high[3]};
    *reinterpret_cast<uint4*>(A_10.low[lane]) = {low[0], low[1], low[2], low[3]};
  }
  store_inverse(stage, lower, c, block, lane);
  fence_to_async_proxy();
}

/// scale / |q| of token lane % 16 of a block; either half of the warp sums half of the parts.
__device__ __forceinline__ float query_factor(const Params& p, const Operands& operands, int block, int lane) {
  constexpr int kParts = kScalingWarps / 2;
  float square = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    square += operands.half[0].query_square_sum[lane / 16 * kParts + i][block * kBlock + lane % 16];
  square += __shfl_xor_sync(0xffffffffu, square, 16);
  return p.scale * (p.l2norm ? rsqrt_approx(square + static_cast<float>(kNormEpsilon)) : 1.0f);
}

/// P_ij = <q_i, k_j> for j <= i, without the norms: those of k are in U, those of q wait until the output.
__device__ __forceinline__ void store_scores(Stage& stage, const BlockProducts& products, int block, int lane) {
  float c[8];
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const bool above = 8 * (i / 4) + 2 * (lane % 4) + i % 2 > lane / 4 + 8 * (i / 2 % 2);
    c[i] = above ? 0.0f : block == 0 ? products.own[i] : products.seen[8 + i];
  }
  to_left_operand(packed, c);
  store_matrix_x4(block_place(stage, block * kBlock, kChunk + block * kBlock, lane), packed);
  if (block == 1) {
#pragma unroll
    for (int i = 0; i < 8; ++i) c[i] = products.seen[i];
    to_left_operand(packed, c);
    store_matrix_x4(block_place(stage, kBlock, kChunk, lane), packed);
  }
}

/// A finishing warp's part of the chunks of its CTA. In a CTA that helps, warpgroups 0 and 1 take turns; in one that
/// walks there is one, which also moves data. warp: of the warpgroup.
template <Role kRole>
__device__ __forceinline__ void finish_chunks(const Params& p, const InputMaps& maps, Shared& shared, int group,
                                              int warp, int lane) {
  constexpr bool kHelping = kRole == Role::kHelping;
  constexpr int kGroups = kHelping ? 2 : 1;
  // Out of a chunk is waited for when this many more have been finished: then the state, which follows the finishing
  // closely, is past it.
  constexpr int kBehind = 2;
  static_assert(kBehind < kStages);
  const int chunks = kHelping ? 0 : shared.task.chunks;
  int64_t beta_position = 0;  // in a CTA that walks: of this lane's key of the first chunk
  uint32_t bits = 0;          // of beta; behind the sequence it is 0: nothing is written to the state
  bool valid = false;
  const auto position_of_beta = [&](const Task& task) {
    return token_offset(p.beta, task.sequence.batch, task.sequence.begin + warp % 2 * kBlock + lane % kBlock,
                        task.head);
  };
  const auto load_beta = [&](const Task& task, int64_t of_first, int chunk) {
    valid = chunk * kChunk + warp % 2 * kBlock + lane % kBlock < static_cast<int>(task.sequence.length);
    if (valid) bits = beta_bits(p, of_first + chunk * kChunk * p.beta.stride_token);
  };
  Moving moving = {};
  if constexpr (!kHelping) {
    if (warp < 2) {
      beta_position = position_of_beta(shared.task);
      load_beta(shared.task, beta_position, 0);  // always a step ahead
    } else {
      move_first_chunks<kRole>(p, maps, shared, moving, warp % 2, lane);
    }
  }
#pragma unroll 1
  for (int turn = group; kHelping || turn < chunks + kBehind; turn += kGroups) {
    const int step = __shfl_sync(0xffffffffu, turn, 0);  // in a uniform register, for the descriptors
    // Nothing that follows from the thread is kept from chunk to chunk: registers are short.
    lane = thread_of_cta() % 32;
    const int own_warp = __shfl_sync(0xffffffffu, thread_of_cta() / 32, 0), block = own_warp % 2;
    const bool keys = own_warp / 2 % 2 == 0;
    const int place = step % kStages;
    Stage& stage = shared.stage[place];
    const auto parity = static_cast<uint32_t>(step / kStages) & 1;
    const bool finishes = kHelping || step < chunks;
    bool given = false;
    if (finishes) {
      int own_turn = step;
      if constexpr (kRole == Role::kHelped) {
        wait_barrier(&shared.loaded[place], parity);
        own_turn = __shfl_sync(0xffffffffu, shared.turn[place], 0);
        given = own_turn < 0;
      }
      if (given) {
        if (keys) {
          load_beta(shared.task, beta_position, step + 1);
          arrive_as_warp(&shared.diagonal_inverted[place], lane);
        } else if (block == 0) {
          arrive_as_warp(&shared.scored[place], lane);
        }
      } else {
        float beta = !kHelping && valid ? activate_beta(p, bits) : 0.0f;
        wait_barrier(&shared.scaled[place], parity);
        if constexpr (kHelping) {
          const Order& order = order_of(shared.stage[place]);
          if (order.chunk < 0) return;
          if (keys) load_beta(order.task, position_of_beta(order.task), order.chunk);
        }
        const Operands& operands = shared.operands[own_turn % kOperands];
        uint64_t* const consumed = &shared.consumed[own_turn % kOperands];
        const BlockProducts products = block_products(stage, operands);
        if (keys) {
          const auto wait_for_below = [&] {  // A_10 of the last one is read
            if (const int last = step - kGroups; last >= 0)
              wait_barrier(&shared.inverted[last % kStages], static_cast<uint32_t>(last / kStages) & 1);
          };
          // Before Operands are free: else the other warpgroup could finish the next chunk in the last one's stage.
          if constexpr (kHelping) wait_for_below();
          arrive_as_warp(consumed, lane);
          if constexpr (kHelping) {
            beta = valid ? activate_beta(p, bits) : 0.0f;
          } else {
            if (step + 1 < chunks) load_beta(shared.task, beta_position, step + 1);
            wait_for_below();
          }
          finish_keys(p, stage, shared.lower[group][block], shared.below[group], products, block, beta, lane);
          arrive_as_warp(&shared.diagonal_inverted[place], lane);
        } else {
          const float factor = query_factor(p, operands, block, lane);
          arrive_as_warp(consumed, lane);
          if (lane < kBlock) {
            float* const norm = stage.query_norm[block * kBlock + lane];
            norm[0] = factor * (block == 0 ? 1.0f / kShiftFactor : 1.0f);
            norm[1] = factor * kShiftFactor;
          }
          store_scores(stage, products, block, lane);
          fence_to_async_proxy();
          arrive_as_warp(&shared.scored[place], lane);
        }
      }
    }
    if (!kHelping && !keys && step >= kBehind)  // while the keys' warps invert
      move_chunk<kRole>(p, maps, shared, moving, step - kBehind, block, forget(lane) & 31);
    if (finishes && !keys && block == 0) {
      wait_barrier(&shared.diagonal_inverted[place], parity);
      if (!given) {
        store_block_below(stage, shared.below[group], lane);
        fence_to_async_proxy();
      }
      arrive_as_warp(&shared.inverted[place], lane);
    }
  }
  if constexpr (kRole == Role::kHelped)  // all packages are read
    if (warp == 3 && lane == 0) store_relaxed(&shared.task.board->asked, static_cast<uint32_t>(chunks + kStages));
}

}  // namespace flash_kda::cuda::fused

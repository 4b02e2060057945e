// First kernel: turns one tile (16 tokens of one value head) into its image in the workspace. One CTA a tile and head.
//
//   load     q, k, g by TMA, dt_bias by bulk copy, all on one transaction barrier; A_log and beta by plain loads
//   meanwhile norm     1/|q|, 1/|k| of every row                                            a warp takes four rows gate
//   log2 gate and its running sum over the rows                          a thread takes two channels and eight rows
//   scale    q, k times 2^(G - middle) and 2^(middle - G), and the decayed and restored tiles of the image
//   products A = beta <k, k>, P = <q, k> on tensor cores                          a warp takes eight columns of one of
//   them inverse  T = (I + A)^-1                                                       a thread takes one column store
//   the image, by one bulk copy
//
// The anchor of the products is the middle of each channel's total: with lower_bound >= -5 sixteen tokens span at most
// 115.4 in log2, so both factors stay within 2^+-58.
#pragma once

#include "common/sequence.h"
#include "cuda/common/gate.cuh"
#include "cuda/common/ptx.cuh"
#include "cuda/common/triangular_inverse.cuh"
#include "cuda/two_kernel/config.h"
#include "cuda/two_kernel/launch.h"

namespace flash_kda::cuda::two_kernel {

/// What a CTA of `prepare` works on. valid == 0: nothing.
struct TileTask {
  int64_t n = 0;      ///< sequence
  int64_t batch = 0;  ///< batch row
  int64_t token = 0;  ///< first token, within the batch row
  int valid = 0;      ///< tokens of the tile that belong to the sequence, up to 16
};

/// The sequence whose slots hold `slot`: the last one that begins at or before it. Called by a whole warp; 32 probes a
/// round.
__device__ __forceinline__ int64_t sequence_of_slot(const Params& p, int64_t slot) {
  if (p.cu_seqlens == nullptr) return slot / tiles_of(p.T);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int64_t low = 0, high = p.N;
  while (high - low > 1) {
    const int64_t step = (high - low + 31) / 32, probe = low + lane * step;
    const bool before = probe < high && first_slot(p, probe, sequence_of(p, probe).begin) <= slot;
    const int count = __popc(__ballot_sync(0xffffffffu, before));
    low += (count > 0 ? count - 1 : 0) * step;
    high = low + step < high ? low + step : high;
  }
  return low;
}

/// Called by a whole warp.
__device__ __forceinline__ TileTask tile_task(const Params& p, int64_t slot) {
  const int64_t n = sequence_of_slot(p, slot);
  const Sequence sequence = sequence_of(p, n);
  const int64_t offset = (slot - first_slot(p, n, sequence.begin)) * kTile;
  if (offset >= sequence.length || slots_of(p, n).padded) return {};
  const int64_t left = sequence.length - offset;
  return {n, sequence.batch, sequence.begin + offset, static_cast<int>(left < kTile ? left : kTile)};
}

/// Two neighbouring gate inputs.
__device__ __forceinline__ float2 load_pair(const __nv_bfloat16* g) {
  const uint32_t packed = *reinterpret_cast<const uint32_t*>(g);
  return {low_bf16(packed), high_bf16(packed)};
}
__device__ __forceinline__ float2 load_pair(const float* g) { return *reinterpret_cast<const float2*>(g); }

/// Sum of squares of row `row` of an unswizzled [16, 128] bf16 tile, in every lane. Called by a whole warp.
__device__ __forceinline__ float row_square_sum(const unsigned char* tile, int row, int lane) {
  const uint2 packed = *reinterpret_cast<const uint2*>(tile + row * kHeadDim * 2 + lane * 8);
  const float a = low_bf16(packed.x), b = high_bf16(packed.x), c = low_bf16(packed.y), d = high_bf16(packed.y);
  float sum = a * a + b * b + c * c + d * d;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  return sum;
}

template <typename Gate>
__global__ void __launch_bounds__(kPrepareThreads, 7)
    prepare(const __grid_constant__ Params p, const __grid_constant__ InputMaps maps) {
  extern __shared__ __align__(128) unsigned char storage[];
  auto& shared = *reinterpret_cast<PrepareShared<Gate>*>(storage);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t slot = blockIdx.x / static_cast<unsigned>(p.HV);
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.HV));
  cudaGridDependencySynchronize();  // what came before in the stream is complete: inputs, and readers of the workspace
  const TileTask task = tile_task(p, slot);
  if (task.valid == 0) return;

  unsigned char* const sQ = shared.raw;
  unsigned char* const sK = sQ + kTileBytes;
  auto* const sG = reinterpret_cast<Gate*>(sK + kTileBytes);

  // ---- load ----
  if (thread == 0) {
    ptx::mbarrier_init(&shared.loaded, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    const uint32_t bias_bytes = p.dt_bias == nullptr ? 0 : sizeof shared.dt_bias;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &shared.loaded,
                                   PrepareShared<Gate>::kRawBytes + bias_bytes);
    const auto load = [&](void* target, const CUtensorMap& map, int head_of_map) {
      const int32_t corner[4] = {0, head_of_map, static_cast<int32_t>(task.token), static_cast<int32_t>(task.batch)};
      ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, target, &map, corner, &shared.loaded);
    };
    const int query_head = head / (p.HV / p.H);
    load(sQ, maps.q, query_head);
    load(sK, maps.k, query_head);
    load(sG, maps.g, head);
    if (bias_bytes > 0)
      bulk_load(shared.dt_bias, p.dt_bias + static_cast<int64_t>(head) * kHeadDim, bias_bytes, &shared.loaded);
  }
  if (p.dt_bias == nullptr) shared.dt_bias[thread] = 0.0f;
  if (thread < kTile) {
    const int64_t offset = token_offset(p.beta, task.batch, task.token + thread, head);
    shared.beta[thread] = thread < task.valid ? activate_beta(p, beta_bits(p, offset)) : 0.0f;
  }
  const float slope = gate_slope(p, head);
  const float gate_scale = p.lower_bound * kLog2E;
  __syncthreads();
  wait_barrier(&shared.loaded, 0);

  // ---- norm ----
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = 4 * warp + i / 2;
    const float sum = row_square_sum(i % 2 == 0 ? sQ : sK, row, lane);
    // Rows behind the sequence get 0: their sum may be NaN.
    const float inverse = row >= task.valid ? 0.0f : p.l2norm ? rsqrtf(sum + static_cast<float>(kNormEpsilon)) : 1.0f;
    if (lane == i) shared.inverse_norm[i % 2][row] = i % 2 == 0 ? inverse * p.scale : inverse;
  }

  // ---- gate ----
  const int channel = 2 * (thread % 64),
            half = thread / 64;  // this thread: channels channel, channel + 1; rows 8 * half ...
  const float2 bias = *reinterpret_cast<const float2*>(&shared.dt_bias[channel]);
  float2 G[8];  // running sum within the half
  uint32_t q[8], k[8];
  float2 sum = {0.0f, 0.0f};
#pragma unroll
  for (int r = 0; r < 8; ++r) {
    const int row = 8 * half + r;
    const bool valid =
        row < task.valid;  // rows behind the sequence belong to another one: never let them enter arithmetic
    const float2 g = load_pair(sG + row * kHeadDim + channel);
    sum.x += valid ? bounded_gate_log2(g.x, bias.x, slope, gate_scale) : 0.0f;
    sum.y += valid ? bounded_gate_log2(g.y, bias.y, slope, gate_scale) : 0.0f;
    G[r] = sum;
    q[r] = valid ? *reinterpret_cast<const uint32_t*>(sQ + (row * kHeadDim + channel) * 2) : 0;
    k[r] = valid ? *reinterpret_cast<const uint32_t*>(sK + (row * kHeadDim + channel) * 2) : 0;
  }
  *reinterpret_cast<float2*>(&shared.half_sum[half][channel]) = sum;
  __syncthreads();

  // ---- scale ----
  unsigned char* const sQMiddle =
      shared.raw;  // [16, 128] swizzled, q * 2^(G - middle); all raw tiles are in registers now
  unsigned char* const sKMiddle = sQMiddle + kTileBytes;
  unsigned char* const sKInverse = sKMiddle + kTileBytes;  // k * 2^(middle - G)
  {
    const float2 first = *reinterpret_cast<const float2*>(&shared.half_sum[0][channel]);
    const float2 second = *reinterpret_cast<const float2*>(&shared.half_sum[1][channel]);
    const float2 middle = {0.5f * (first.x + second.x), 0.5f * (first.y + second.y)};
    const float2 before = {(half == 0 ? 0.0f : first.x) - middle.x, (half == 0 ? 0.0f : first.y) - middle.y};
    const float2 edge = {exp2_approx(middle.x), exp2_approx(middle.y)};  // 2^(middle - 0) and 2^(G_16 - middle)
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int row = 8 * half + r;
      const float x = before.x + G[r].x, y = before.y + G[r].y;  // G - middle
      const float norm_q = shared.inverse_norm[0][row], norm_k = shared.inverse_norm[1][row];
      const float up_x = exp2_approx(x), up_y = exp2_approx(y), down_x = exp2_approx(-x), down_y = exp2_approx(-y);
      const float k_x = low_bf16(k[r]) * norm_k, k_y = high_bf16(k[r]) * norm_k;
      const float q_x = low_bf16(q[r]) * norm_q * up_x, q_y = high_bf16(q[r]) * norm_q * up_y;
      const float above_x = k_x * up_x, above_y = k_y * up_y, below_x = k_x * down_x, below_y = k_y * down_y;
      const int offset = tile_offset(row, channel);
      const auto store = [&](unsigned char* tile, float a, float b) {
        *reinterpret_cast<uint32_t*>(tile + offset) = pack_bf16(a, b);
      };
      store(sQMiddle, q_x, q_y);
      store(sKMiddle, above_x, above_y);
      store(sKInverse, below_x, below_y);
      store(shared.image + Image::q_decayed, q_x * edge.x, q_y * edge.y);
      store(shared.image + Image::k_decayed, above_x * edge.x, above_y * edge.y);
      store(shared.image + Image::k_restored, below_x * edge.x, below_y * edge.y);
    }
    if (half == 0)
      *reinterpret_cast<float2*>(shared.image + Image::g_total + channel * 4) = {edge.x * edge.x, edge.y * edge.y};
    if (thread < kTile) reinterpret_cast<float*>(shared.image + Image::beta)[thread] = shared.beta[thread];
  }
  __syncthreads();

  // ---- products ----
  const bool is_query = warp >= 2;
  const int column0 = 8 * (warp % 2);
  {
    const uint32_t a_tile = shared_address(is_query ? sQMiddle : sKMiddle), b_tile = shared_address(sKInverse);
    float c[2][4] = {};
#pragma unroll
    for (int step = 0; step < 8; step += 2) {  // two products of 16 channels a round
      uint32_t b[4];
      load_matrix_x4(b, b_tile + tile_offset(column0 + lane % 8, 16 * step + 8 * (lane / 8)));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t a[4];
        load_matrix_x4(a, a_tile + tile_offset(lane % 16, 16 * (step + i) + 8 * (lane / 16)));
        multiply_accumulate(c[i], a, b[2 * i], b[2 * i + 1]);
      }
    }
    const int group = lane / 4, column = column0 + 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = group + 8 * i;
      const float left = c[0][2 * i] + c[1][2 * i], right = c[0][2 * i + 1] + c[1][2 * i + 1];
      if (is_query) {
        *reinterpret_cast<uint32_t*>(shared.image + Image::Mqk + square_offset(row, column)) =
            pack_bf16(column <= row ? left : 0.0f, column + 1 <= row ? right : 0.0f);
      } else {
        shared.lower[column][row] = column < row ? shared.beta[row] * left : 0.0f;
        shared.lower[column + 1][row] = column + 1 < row ? shared.beta[row] * right : 0.0f;
      }
    }
  }
  __syncthreads();

  // ---- inverse ----
  if (thread < kTile) {
    float x[kTile];
    inverse_column(x, shared.lower, thread, 1.0f);
#pragma unroll
    for (int i = 0; i < kTile; ++i)
      *reinterpret_cast<__nv_bfloat16*>(shared.image + Image::inverse + square_offset(i, thread)) =
          __float2bfloat16_rn(x[i]);
  }

  // ---- store ----
  fence_to_async_proxy();
  __syncthreads();
  if (thread == 0) {
    bulk_store(static_cast<unsigned char*>(p.workspace) + image_offset(slot, head, p.HV), shared.image, Image::bytes);
    ptx::cp_async_bulk_commit_group();
    ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
  }
}

}  // namespace flash_kda::cuda::two_kernel

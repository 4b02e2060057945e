// The state of one head in the registers of warps, 16 rows (V) by 128 columns (K) a warp in fp32: how it comes from and
// goes to global memory, and how accumulators become operands of the next product.
#pragma once

#include "api/params.h"
#include "common/sequence.h"
#include "cuda/common/ptx.cuh"

namespace flash_kda::cuda {

/// The part of the state a math warp keeps: accumulators of 16 rows x 128 columns, S[j] being columns 8j ... 8j + 7.
struct StateFragment {
  float S[16][4];
};

/// Element (row group + 8 * lower, columns 8j + 2 * member + {0,1}) of the warp's 16 rows lies at
/// base + lower * 8 * stride_row + 8 * j + 2 * member (fp32 or bf16). Called by a warp.
__device__ __forceinline__ void load_state(StateFragment& fragment, const StateTensor& state, int64_t slot, int head,
                                           int row0, int lane) {
  const int64_t base = state_offset(state, slot, head, row0 + lane / 4) + 2 * (lane % 4);
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
      const int64_t offset = base + lower * 8 * state.stride_row + 8 * j;
      float2 value;
      if (state.dtype == FLASH_KDA_F32) {
        value = *reinterpret_cast<const float2*>(static_cast<const float*>(state.data) + offset);
      } else {
        const uint32_t packed =
            *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(state.data) + offset);
        value = {low_bf16(packed), high_bf16(packed)};
      }
      fragment.S[j][2 * lower] = value.x;
      fragment.S[j][2 * lower + 1] = value.y;
    }
}

__device__ __forceinline__ void store_state(const StateFragment& fragment, const StateTensor& state, int64_t slot,
                                            int head, int row0, int lane) {
  const int64_t base = state_offset(state, slot, head, row0 + lane / 4) + 2 * (lane % 4);
  const auto for_each_pair = [&](const auto& store) {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower)
        store(base + lower * 8 * state.stride_row + 8 * j, fragment.S[j][2 * lower], fragment.S[j][2 * lower + 1]);
  };
  if (state.dtype == FLASH_KDA_F32)
    for_each_pair([&](int64_t offset, float x, float y) {
      *reinterpret_cast<float2*>(static_cast<float*>(state.data) + offset) = {x, y};
    });
  else
    for_each_pair([&](int64_t offset, float x, float y) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(state.data) + offset) = pack_bf16(x, y);
    });
}

/// Two accumulators of neighbouring columns become the left operand of a product over those 16 columns.
__device__ __forceinline__ void to_left_operand(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
  a[0] = pack_bf16(left[0], left[1]);
  a[1] = pack_bf16(left[2], left[3]);
  a[2] = pack_bf16(right[0], right[1]);
  a[3] = pack_bf16(right[2], right[3]);
}

/// The same where the two lie one behind the other: c[0 ... 7].
__device__ __forceinline__ void to_left_operand(uint32_t (&a)[4], const float* c) {
#pragma unroll
  for (int r = 0; r < 4; ++r) a[r] = pack_bf16(c[2 * r], c[2 * r + 1]);
}

}  // namespace flash_kda::cuda

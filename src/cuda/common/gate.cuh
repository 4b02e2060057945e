// Activations of the gate, of beta and of the L2 norm: called by any thread, registers only.
#pragma once

#include <cfloat>

#include "api/params.h"
#include "cuda/common/ptx.cuh"

namespace flash_kda::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

/// exp(A_log), or 1 without it, times log2(e) and clamped to fp32's finite range, so that a zero argument stays zero.
__device__ __forceinline__ float gate_slope(const Params& p, int value_head) {
  const float factor = p.A_log == nullptr ? 1.0f : expf(p.A_log[value_head]);
  return fminf(factor * kLog2E, FLT_MAX);
}

/// 1 / (1 + 2^(-x)): the sigmoid of x * ln(2). Relative error about 1e-6, also for very negative x.
__device__ __forceinline__ float sigmoid_log2(float x) { return reciprocal_approx(1.0f + exp2_approx(-x)); }

/// Bounded gate in log2: lower_bound * log2(e) * sigmoid(exp(A_log) * (g + bias)), <= 0. scale = lower_bound * log2(e).
__device__ __forceinline__ float bounded_gate_log2(float g, float bias, float slope, float scale) {
  return scale * sigmoid_log2((g + bias) * slope);
}

/// Element `offset` of beta as it lies in memory, so that nothing waits for it here.
__device__ __forceinline__ uint32_t beta_bits(const Params& p, int64_t offset) {
  if (p.beta.dtype == FLASH_KDA_F32) return static_cast<const uint32_t*>(p.beta.data)[offset];
  return static_cast<const uint16_t*>(p.beta.data)[offset];
}

/// beta after its activation, from beta_bits.
__device__ __forceinline__ float activate_beta(const Params& p, uint32_t bits) {
  const float raw = __uint_as_float(p.beta.dtype == FLASH_KDA_F32 ? bits : bits << 16);
  if (p.beta_form == FLASH_KDA_BETA_PROBABILITIES) return raw;
  const float sigmoid = sigmoid_log2(raw * kLog2E);
  return p.beta_form == FLASH_KDA_BETA_TWICE_SIGMOID ? 2.0f * sigmoid : sigmoid;
}

}  // namespace flash_kda::cuda

#include "cuda/reference.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <stdexcept>

#include "api/validate.h"
#include "common/sequence.h"
#include "cuda/common/check.h"

namespace flash_kda::test {
namespace {

constexpr int kMaxDim = 128;
constexpr int kThreadsPerRow = 4;  // of the state: each keeps every fourth column
constexpr int kColumns = kMaxDim / kThreadsPerRow;
constexpr int kThreads = kMaxDim * kThreadsPerRow;

__device__ double load(const void* data, flash_kda_dtype dtype, int64_t i) {
  switch (dtype) {
    case FLASH_KDA_F32:
      return static_cast<const float*>(data)[i];
    case FLASH_KDA_BF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return __half2float(static_cast<const __half*>(data)[i]);
  }
}

__device__ void store(void* data, flash_kda_dtype dtype, int64_t i, double value) {
  switch (dtype) {
    case FLASH_KDA_F32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      return;
    case FLASH_KDA_BF16:
      static_cast<__nv_bfloat16*>(data)[i] = __double2bfloat16(value);
      return;
    default:
      static_cast<__half*>(data)[i] = __double2half(value);
  }
}

__device__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

__device__ double log_gate(const Params& p, double g, double factor, double bias) {
  switch (p.gate) {
    case FLASH_KDA_GATE_BOUNDED:
      return static_cast<double>(p.lower_bound) * sigmoid(factor * (g + bias));
    case FLASH_KDA_GATE_SOFTPLUS: {
      const double x = g + bias;
      return -factor * (fmax(x, 0.0) + log1p(exp(-fabs(x))));
    }
    default:
      return g;
  }
}

__device__ double activated_beta(const Params& p, double raw) {
  if (p.beta_form == FLASH_KDA_BETA_PROBABILITIES) return raw;
  return p.beta_form == FLASH_KDA_BETA_TWICE_SIGMOID ? 2.0 * sigmoid(raw) : sigmoid(raw);
}

/// What the state needs of one token.
struct Token {
  double q[kMaxDim], k[kMaxDim], decay[kMaxDim], v[kMaxDim], beta;
};

/// 1 / |x| of a row that a warp reads, or 1 without the norm. Called by a whole warp.
__device__ double inverse_norm(const Params& p, const TokenTensor& x, int64_t offset, int lane) {
  if (!p.l2norm) return 1.0;
  double sum = 0;
  for (int d = lane; d < p.K; d += 32) {
    const double element = load(x.data, x.dtype, offset + d);
    sum += element * element;
  }
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
  return 1.0 / sqrt(sum + kNormEpsilon);
}

/// Warps 0 to 3 fill their part; columns behind K and V keep the zeros they began with.
__device__ void load_token(const Params& p, Token& token, int64_t b, int64_t t, int head, double factor) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto offset = [&](const TokenTensor& x, int h) { return token_offset(x, b, t, h); };
  const auto load_normalised = [&](double* target, const TokenTensor& x) {
    const int64_t first = offset(x, head / (p.HV / p.H));
    const double norm = inverse_norm(p, x, first, lane);
    for (int d = lane; d < p.K; d += 32) target[d] = load(x.data, x.dtype, first + d) * norm;
  };
  if (warp == 0) {
    load_normalised(token.q, p.q);
  } else if (warp == 1) {
    load_normalised(token.k, p.k);
  } else if (warp == 2) {
    const int64_t first = offset(p.g, head);
    for (int d = lane; d < p.K; d += 32) {
      const double bias = p.dt_bias == nullptr ? 0.0 : p.dt_bias[static_cast<int64_t>(head) * p.K + d];
      token.decay[d] = exp(log_gate(p, load(p.g.data, p.g.dtype, first + d), factor, bias));
    }
  } else if (warp == 3) {
    const int64_t first = offset(p.v, head);
    for (int d = lane; d < p.V; d += 32) token.v[d] = load(p.v.data, p.v.dtype, first + d);
    if (lane == 0) token.beta = activated_beta(p, load(p.beta.data, p.beta.dtype, offset(p.beta, head)));
  }
}

__device__ double sum_of_row(double x) {
  for (int mask = kThreadsPerRow / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}

/// One CTA a (sequence, value head).
__global__ void __launch_bounds__(kThreads) recurrence(const __grid_constant__ Params p) {
  __shared__ Token tokens[2];
  const int thread = static_cast<int>(threadIdx.x), row = thread / kThreadsPerRow, part = thread % kThreadsPerRow;
  const int64_t n = blockIdx.x / static_cast<unsigned>(p.HV);
  const int head = static_cast<int>(blockIdx.x % static_cast<unsigned>(p.HV));
  const Sequence sequence = sequence_of(p, n);
  const Slots slots = slots_of(p, n);
  const auto out = [&](int64_t t) { return token_offset(p.out, sequence.batch, sequence.begin + t, head) + row; };
  if (slots.padded) {
    for (int64_t t = 0; t < sequence.length; ++t)
      if (row < p.V && part == 0) store(p.out.data, p.out.dtype, out(t), 0.0);
    return;
  }

  const double factor =
      p.A_log == nullptr ? 1.0 : fmin(exp(static_cast<double>(p.A_log[head])), static_cast<double>(FLT_MAX));
  const auto column = [&](int j) { return j * kThreadsPerRow + part; };
  double S[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const bool stored = slots.read >= 0 && row < p.V && column(j) < p.K;
    const StateTensor& s = p.initial_state;
    S[j] = stored ? load(s.data, s.dtype, state_offset(s, slots.read, head, row) + column(j)) : 0.0;
  }
  for (int i = thread; i < static_cast<int>(sizeof tokens / sizeof(double)); i += kThreads)
    reinterpret_cast<double*>(tokens)[i] = 0.0;
  __syncthreads();
  if (sequence.length > 0) load_token(p, tokens[0], sequence.batch, sequence.begin, head, factor);
  for (int64_t t = 0; t < sequence.length; ++t) {
    __syncthreads();
    if (t + 1 < sequence.length)
      load_token(p, tokens[(t + 1) % 2], sequence.batch, sequence.begin + t + 1, head, factor);
    const Token& token = tokens[t % 2];
    double predicted = 0, o = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      S[j] *= token.decay[column(j)];
      predicted += S[j] * token.k[column(j)];
    }
    const double u = token.beta * (token.v[row] - sum_of_row(predicted));
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      S[j] += u * token.k[column(j)];
      o += S[j] * token.q[column(j)];
    }
    o = static_cast<double>(p.scale) * sum_of_row(o);
    if (row < p.V && part == 0) store(p.out.data, p.out.dtype, out(t), o);
  }
  if (slots.write < 0 || row >= p.V) return;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const StateTensor& s = p.final_state;
    if (column(j) < p.K) store(s.data, s.dtype, state_offset(s, slots.write, head, row) + column(j), S[j]);
  }
}

}  // namespace

void run_gpu_reference(flash_kda_forward_args args) {
  args.backend = FLASH_KDA_BACKEND_CUDA;
  const Params params = validate(args, Purpose::kRun);
  if (params.K > kMaxDim || params.V > kMaxDim || params.M > 0)
    throw std::invalid_argument("the GPU reference takes K and V up to 128 and no checkpoints");
  if (params.N == 0) return;
  recurrence<<<static_cast<unsigned>(params.N * params.HV), kThreads>>>(params);
  cuda::check(cudaGetLastError(), "launch of the GPU reference");
}

}  // namespace flash_kda::test

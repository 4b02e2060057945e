// The validated arguments of one call. validate.cpp is the only place that fills them, so everything after it (plan,
// launch, kernels) may rely on what the comments here say.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flash_kda/flash_kda.h"

namespace flash_kda {

/// Largest head dimension of the CPU backends.
inline constexpr int kMaxHeadDim = 256;
/// Checkpoint offsets are multiples of this many tokens on every path.
inline constexpr int kCheckpointStep = 64;
/// Most tokens a sequence may have in `decode`.
inline constexpr int kMaxDecodeTokens = 8;
/// Added to |x|^2 under the root of the L2 norm.
inline constexpr double kNormEpsilon = 1e-6;

/// [B, T, heads, D] with a contiguous last dimension, or [B, T, heads]. Element (b, t, h, 0) is
/// data + b * stride_batch + t * stride_token + h * stride_head; strides count elements.
struct TokenTensor {
  void* data = nullptr;
  flash_kda_dtype dtype = FLASH_KDA_F32;
  int64_t stride_batch = 0;
  int64_t stride_token = 0;
  int64_t stride_head = 0;
};

/// [slots, HV, V, K] with contiguous K; strides count elements. data == nullptr: absent.
struct StateTensor {
  void* data = nullptr;
  flash_kda_dtype dtype = FLASH_KDA_F32;
  int64_t slots = 0;
  int64_t stride_slot = 0;
  int64_t stride_head = 0;
  int64_t stride_row = 0;
  const int32_t* index = nullptr;  ///< [N] (checkpoints: [M]); nullptr: row n is slot n
};

/// Where a call came from: the two operators share everything up to the plan.
enum class Operator { kForward, kDecode };

struct Params {
  Operator op = Operator::kForward;

  int64_t B = 0;  ///< batch; 1 when cu_seqlens is given
  int64_t T = 0;  ///< tokens of a batch row
  int64_t N = 0;  ///< sequences
  int H = 0;      ///< query/key heads
  int HV = 0;     ///< value heads, a multiple of H
  int K = 0;
  int V = 0;

  TokenTensor q, k;                ///< [B, T, H, K], one dtype
  TokenTensor v, out;              ///< [B, T, HV, V]
  TokenTensor g;                   ///< [B, T, HV, K]
  TokenTensor beta;                ///< [B, T, HV]
  const float* A_log = nullptr;    ///< [HV] contiguous, or nullptr
  const float* dt_bias = nullptr;  ///< [HV, K] contiguous, or nullptr

  bool packed = false;               ///< cu_seqlens is given
  const void* cu_seqlens = nullptr;  ///< [N + 1] contiguous; nullptr: not packed, or the call is only inquired about
  bool cu_seqlens_is_64bit = false;

  StateTensor initial_state;                   ///< may be absent
  StateTensor final_state;                     ///< may be absent
  const uint8_t* has_initial_state = nullptr;  ///< [N], or nullptr: all true

  int64_t M = 0;                         ///< checkpoints
  const int32_t* checkpoints = nullptr;  ///< [M, 2] contiguous (sequence, offset)
  StateTensor checkpoint_state;

  float scale = 0;  ///< the value to use, never the default marker
  float lower_bound = 0;
  flash_kda_gate gate = FLASH_KDA_GATE_BOUNDED;
  flash_kda_beta beta_form = FLASH_KDA_BETA_LOGITS;
  bool l2norm = true;
  bool batch_invariant = false;
  bool check_cu_seqlens = false;

  flash_kda_backend backend = FLASH_KDA_BACKEND_CPU;
  flash_kda_cuda_path cuda_path = FLASH_KDA_CUDA_PATH_AUTO;
  int device = 0;
  int num_threads = 0;
  void* stream = nullptr;
  void* workspace = nullptr;
  size_t workspace_size = 0;
};

/// Bytes of one element.
constexpr int64_t size_of(flash_kda_dtype dtype) {
  switch (dtype) {
    case FLASH_KDA_F64:
    case FLASH_KDA_I64:
      return 8;
    case FLASH_KDA_F32:
    case FLASH_KDA_I32:
      return 4;
    case FLASH_KDA_BF16:
    case FLASH_KDA_F16:
      return 2;
    case FLASH_KDA_BOOL:
      return 1;
  }
  return 0;
}

/// As messages say it.
constexpr const char* name_of_dtype(int32_t dtype) {
  switch (dtype) {
    case FLASH_KDA_F32:
      return "float32";
    case FLASH_KDA_BF16:
      return "bfloat16";
    case FLASH_KDA_F16:
      return "float16";
    case FLASH_KDA_F64:
      return "float64";
    case FLASH_KDA_I32:
      return "int32";
    case FLASH_KDA_I64:
      return "int64";
    case FLASH_KDA_BOOL:
      return "bool";
    default:
      return "unknown";
  }
}

}  // namespace flash_kda

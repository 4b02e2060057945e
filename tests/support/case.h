// One row of a test table: shapes, types and options of a call, and where its inputs come from. Knows no backend: the
// CPU tests, the GPU tests and the benchmarks read the same rows.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "flash_kda/flash_kda.h"

namespace flash_kda::test {

/// How strong the decay is and how alike the keys are. F1 to F8 are the accuracy rows; z, b are standard normal.
enum class Family {
  kF1,       ///< random: g = z, A_log and dt_bias uniform in 0...1
  kF2,       ///< g = -4 + z/2
  kF3,       ///< slow: g = -8 + z/2
  kF4,       ///< slow, beta logit b - 4
  kF5,       ///< mixed: g = z/2, dt_bias uniform in -8...8
  kF6,       ///< near-parallel keys, g = -9 + z/2, beta logit b + 3
  kF7,       ///< identical keys, g = -12, beta logit 8
  kF8,       ///< constant g = -8, beta logit b - 4
  kTrained,  ///< as a layer starts training: A_log = log U(1, 16), dt_bias = inverse softplus of a log-uniform step
  kExtreme,  ///< for softplus: exp(A_log) up to 201, log-gates from 0 to below -2600 side by side
  kNoDecay,  ///< for the log gate: g = 0
};

enum class Layout {
  kPacked,  ///< every token tensor contiguous
  kFused,   ///< q, k, v are slices of one [B, T, 2 H K + HV V + 8] buffer
  kPadded,  ///< gaps between heads and tokens, rows not 16-byte aligned, out included
};

enum class StateRows {
  kAbsent,
  kRows,  ///< [N, HV, V, K]
  kPool,  ///< [slots, HV, V, K] with padded slots, and an index tensor
};

struct Case {
  int64_t B = 1;
  int64_t T = 64;
  int H = 2;
  int HV = 0;  ///< 0: H
  int K = 128;
  int V = 0;                       ///< 0: K
  std::vector<int64_t> lengths{};  ///< not empty: packed sequences, T is ignored
  int64_t rows_after = 0;          ///< rows behind the last packed sequence
  bool wide_cu_seqlens = false;    ///< I64
  flash_kda_dtype qkv = FLASH_KDA_F32;
  flash_kda_dtype gate_dtype = FLASH_KDA_F32;
  flash_kda_dtype beta_dtype = FLASH_KDA_F32;
  flash_kda_dtype out = FLASH_KDA_F32;
  Family family = Family::kF1;
  flash_kda_gate gate = FLASH_KDA_GATE_BOUNDED;
  flash_kda_beta beta_form = FLASH_KDA_BETA_LOGITS;
  bool gate_parameters = true;  ///< A_log and dt_bias present (never with the log gate)
  bool flat_dt_bias = false;    ///< [HV * K] instead of [HV, K]
  bool l2norm = true;
  float scale = FLASH_KDA_DEFAULT_SCALE;
  float lower_bound = -5.0F;
  Layout layout = Layout::kPacked;
  StateRows initial = StateRows::kRows;
  flash_kda_dtype initial_dtype = FLASH_KDA_F32;
  StateRows final = StateRows::kRows;
  flash_kda_dtype final_dtype = FLASH_KDA_F32;
  bool in_place = false;  ///< final_state is the memory of initial_state (same rows, same type)
  bool flags = false;     ///< has_initial_state present, false for some
  std::vector<std::pair<int32_t, int32_t>> checkpoints{};  ///< (sequence, offset)
  bool checkpoint_pool = false;                            ///< checkpoint_index present
  bool batch_invariant = false;
  flash_kda_cuda_path cuda_path = FLASH_KDA_CUDA_PATH_AUTO;

  int value_heads() const { return HV == 0 ? H : HV; }
  int value_dim() const { return V == 0 ? K : V; }
  bool packed() const { return !lengths.empty(); }
  int64_t batch() const { return packed() ? 1 : B; }
  int64_t sequences() const { return packed() ? static_cast<int64_t>(lengths.size()) : B; }
  /// Tokens of a batch row.
  int64_t tokens() const;
  /// Tokens of sequence n.
  int64_t length(int64_t n) const { return packed() ? lengths[static_cast<size_t>(n)] : T; }
};

/// Shape and every option that is not the default, in letters, digits and underscores.
std::string name_of(const Case& c);
std::ostream& operator<<(std::ostream& stream, const Case& c);

/// The bar for computing in fp32 (relative Frobenius error against the fp64 recurrence).
double fp32_tolerance(const Case& c);

/// Bar of a kernel with bf16 operands and fp32 accumulation, output and state, for one tensor of one seed.
/// docs/operator.md has the measured figures of the rounding itself; F6 and F7 amplify it.
double bf16_tolerance(const Case& c);

}  // namespace flash_kda::test

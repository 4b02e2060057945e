#include "support/case.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace flash_kda::test {
namespace {

const char* name_of(flash_kda_dtype dtype) {
  switch (dtype) {
    case FLASH_KDA_F32:
      return "f32";
    case FLASH_KDA_BF16:
      return "bf16";
    case FLASH_KDA_F16:
      return "f16";
    case FLASH_KDA_F64:
      return "f64";
    default:
      return "unknown";
  }
}

const char* name_of(Family family) {
  switch (family) {
    case Family::kF1:
      return "F1";
    case Family::kF2:
      return "F2";
    case Family::kF3:
      return "F3";
    case Family::kF4:
      return "F4";
    case Family::kF5:
      return "F5";
    case Family::kF6:
      return "F6";
    case Family::kF7:
      return "F7";
    case Family::kF8:
      return "F8";
    case Family::kTrained:
      return "trained";
    case Family::kExtreme:
      return "extreme";
    case Family::kNoDecay:
      return "no_decay";
  }
  return "unknown";
}

/// 0.5 -> "0p5", -5 -> "m5"
std::string name_of(float value) {
  std::string text = fmt::format("{}", value);
  for (char& character : text) {
    if (character == '.') character = 'p';
    if (character == '-') character = 'm';
  }
  return text;
}

}  // namespace

int64_t Case::tokens() const { return packed() ? std::accumulate(lengths.begin(), lengths.end(), rows_after) : T; }

std::string name_of(const Case& c) {
  const Case plain;
  std::string name;
  const auto add = [&]<typename... Parts>(fmt::format_string<Parts...> format, Parts&&... parts) {
    if (!name.empty()) name += '_';
    name += fmt::format(format, std::forward<Parts>(parts)...);
  };
  if (c.packed()) {
    add("N{}", c.lengths.size());
    for (size_t n = 0; n < std::min<size_t>(c.lengths.size(), 10); ++n) add("{}", c.lengths[n]);
    if (c.rows_after > 0) add("after{}", c.rows_after);
    if (c.wide_cu_seqlens) add("i64");
  } else {
    add("B{}", c.B);
    add("T{}", c.T);
  }
  add("H{}", c.H);
  if (c.value_heads() != c.H) add("HV{}", c.HV);
  add("K{}", c.K);
  if (c.value_dim() != c.K) add("V{}", c.V);
  if (c.qkv != plain.qkv) add("qkv_{}", name_of(c.qkv));
  if (c.gate_dtype != plain.gate_dtype) add("g_{}", name_of(c.gate_dtype));
  if (c.beta_dtype != plain.beta_dtype) add("beta_{}", name_of(c.beta_dtype));
  if (c.out != plain.out) add("out_{}", name_of(c.out));
  add("{}", name_of(c.family));
  if (c.gate == FLASH_KDA_GATE_SOFTPLUS) add("softplus");
  if (c.gate == FLASH_KDA_GATE_LOG) add("log");
  if (c.beta_form == FLASH_KDA_BETA_PROBABILITIES) add("probabilities");
  if (c.beta_form == FLASH_KDA_BETA_TWICE_SIGMOID) add("twice");
  if (!c.gate_parameters) add("no_parameters");
  if (c.flat_dt_bias) add("flat_dt");
  if (!c.l2norm) add("no_l2norm");
  if (c.scale != plain.scale) add("scale{}", name_of(c.scale));
  if (c.lower_bound != plain.lower_bound) add("bound{}", name_of(c.lower_bound));
  if (c.layout == Layout::kFused) add("fused");
  if (c.layout == Layout::kPadded) add("padded");
  const auto add_state = [&](const char* label, StateRows rows, flash_kda_dtype dtype) {
    if (rows == StateRows::kAbsent) add("no_{}", label);
    if (rows == StateRows::kPool) add("{}_pool", label);
    if (rows != StateRows::kAbsent && dtype != FLASH_KDA_F32) add("{}_{}", label, name_of(dtype));
  };
  add_state("initial", c.initial, c.initial_dtype);
  add_state("final", c.final, c.final_dtype);
  if (c.in_place) add("in_place");
  if (c.flags) add("flags");
  if (!c.checkpoints.empty()) add("checkpoints{}", c.checkpoints.size());
  if (c.checkpoint_pool) add("checkpoint_pool");
  if (c.batch_invariant) add("batch_invariant");
  if (c.cuda_path == FLASH_KDA_CUDA_PATH_TWO_KERNEL) add("two_kernel");
  if (c.cuda_path == FLASH_KDA_CUDA_PATH_FUSED) add("fused");
  return name;
}

std::ostream& operator<<(std::ostream& stream, const Case& c) { return stream << name_of(c); }

double fp32_tolerance(const Case& c) {
  if (c.family == Family::kF6 || c.family == Family::kF7) return 5e-5;
  if (c.family == Family::kExtreme) return 1e-5;
  return 5e-6;
}

double bf16_tolerance(const Case& c) {
  const bool chunk_of_32 = c.cuda_path == FLASH_KDA_CUDA_PATH_FUSED;
  if (c.family == Family::kF6) return 1.15 * (chunk_of_32 ? 1.4e-2 : 1.0e-2);
  if (c.family == Family::kF7) return 1.15 * (chunk_of_32 ? 1.5e-2 : 9.4e-3);
  return 5e-3;
}

}  // namespace flash_kda::test

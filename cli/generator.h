// Reproducible inputs: the same seed, family and shape give the same bytes on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/problem.h"

namespace flash_kda::cli {

/// A family of inputs: how strongly the gate decays, how alike the keys are. z, b are standard normal.
struct Family {
  const char* name;
  const char* description;
  flash_kda_gate gate;
  // Raw gate g = gate_mean + gate_spread * z
  float gate_mean;
  float gate_spread;
  // beta = beta_mean + beta_spread * b
  float beta_mean;
  float beta_spread;
  // A_log [HV], dt_bias [HV, K], uniform in these ranges
  float A_log_first, A_log_last;
  float dt_bias_first, dt_bias_last;
  // q and k = their head's common direction + key_spread * noise; common false: noise alone
  bool common_key;
  float key_spread;
};
const std::vector<Family>& families();
std::vector<std::string> family_names();
const Family& family_of(const std::string& name);

struct GeneratorOptions {
  Shape shape;
  std::string family = "F1";
  float gate_strength = 0;                             ///< added to every raw gate
  flash_kda_dtype dtype = FLASH_KDA_BF16;              ///< of q, k, v, g, beta
  std::optional<flash_kda_dtype> initial_state_dtype;  ///< absent: no initial state
  uint64_t seed = 0;
};

/// q, k, v, g, beta, A_log, dt_bias, cu_seqlens (int32 or int64, if lengths are given) and initial_state, standard
/// normal.
Problem generate(const GeneratorOptions& options);

}  // namespace flash_kda::cli

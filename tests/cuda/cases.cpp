#include "cuda/cases.h"

#include "cuda/solve.h"

namespace flash_kda::test {
namespace {

constexpr auto F32 = FLASH_KDA_F32;
constexpr auto BF16 = FLASH_KDA_BF16;
constexpr auto kNone = StateRows::kAbsent;
constexpr auto kPool = StateRows::kPool;

const std::vector<int64_t> kTails{1, 15, 16, 17, 1, 31, 33, 63, 64, 65, 1};
const std::vector<int64_t> kWithEmpty{0, 5, 0, 0, 40, 16, 0};

std::vector<Case> make_forward_cases() {
  std::vector<Case> cases;
  // Lengths
  for (int64_t T : {0, 1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 129, 500, 1000}) cases.push_back(bf16({.T = T}));
  cases.push_back(bf16({.B = 3, .T = 31}));
  cases.push_back(bf16({.B = 2, .T = 75, .H = 4, .family = Family::kF3}));
  cases.push_back(bf16({.B = 0, .T = 64}));
  cases.push_back(bf16({.T = 4096, .H = 1}));
  // Packed
  cases.push_back(bf16({.lengths = kTails}));
  cases.push_back(bf16({.lengths = kTails, .wide_cu_seqlens = true, .layout = Layout::kFused}));
  cases.push_back(bf16({.H = 3, .lengths = kTails, .rows_after = 9}));
  cases.push_back(bf16({.lengths = kWithEmpty}));
  cases.push_back(bf16({.lengths = kWithEmpty, .initial = kNone, .final_dtype = BF16}));
  cases.push_back(bf16({.lengths = {0, 0, 0}}));
  cases.push_back(bf16({.lengths = {0}, .rows_after = 4}));
  cases.push_back(bf16({.H = 1, .lengths = std::vector<int64_t>(70, 3)}));
  cases.push_back(bf16({.H = 1, .lengths = std::vector<int64_t>(300, 33)}));
  cases.push_back(bf16({.H = 4, .lengths = {1300, 547, 2048, 963, 271, 3063}}));
  // Heads
  cases.push_back(bf16({.T = 70, .H = 1, .HV = 4}));
  cases.push_back(bf16({.B = 2, .T = 70, .H = 2, .HV = 6}));
  cases.push_back(bf16({.T = 40, .H = 40}));
  cases.push_back(bf16({.T = 40, .H = 140}));
  // Types and layouts
  cases.push_back(fp32_gate({.T = 100}));
  cases.push_back(fp32_gate({.lengths = kTails, .layout = Layout::kFused}));
  for (flash_kda_dtype initial : {F32, BF16})
    for (flash_kda_dtype final : {F32, BF16})
      cases.push_back(bf16({.T = 100, .initial_dtype = initial, .final_dtype = final}));
  cases.push_back(bf16({.T = 100, .initial_dtype = BF16, .final_dtype = BF16, .in_place = true}));
  // Gates, beta, norm, scale
  for (Family family :
       {Family::kF1, Family::kF2, Family::kF3, Family::kF4, Family::kF5, Family::kF6, Family::kF7, Family::kF8})
    cases.push_back(bf16({.T = 200, .family = family}));
  cases.push_back(bf16({.T = 200, .gate_parameters = false}));
  cases.push_back(bf16({.T = 200, .flat_dt_bias = true}));
  cases.push_back(bf16({.T = 200, .family = Family::kTrained}));
  cases.push_back(bf16({.T = 200, .family = Family::kF5, .lower_bound = -1.0F}));
  cases.push_back(bf16({.T = 200, .beta_form = FLASH_KDA_BETA_PROBABILITIES}));
  cases.push_back(bf16({.T = 200, .beta_form = FLASH_KDA_BETA_TWICE_SIGMOID}));
  cases.push_back(bf16({.T = 100, .scale = -0.25F}));
  cases.push_back(bf16({.T = 100, .l2norm = false}));
  // States
  cases.push_back(bf16({.T = 100, .initial = kNone}));
  cases.push_back(bf16({.T = 100, .final = kNone}));
  cases.push_back(bf16({.T = 100, .initial = kNone, .final = kNone}));
  cases.push_back(bf16({.B = 4, .T = 40, .flags = true}));
  cases.push_back(bf16({.B = 3, .T = 20, .in_place = true}));
  cases.push_back(bf16({.lengths = kTails, .initial = kPool, .final = kPool}));
  cases.push_back(bf16({.lengths = kTails, .initial = kPool, .final = kPool, .in_place = true}));
  cases.push_back(bf16({.lengths = kTails, .initial = kPool, .initial_dtype = BF16, .final = kPool, .flags = true}));
  cases.push_back(bf16({.lengths = kTails, .initial = kPool}));
  cases.push_back(bf16({.lengths = kTails, .final = kPool}));
  return cases;
}

/// Every case on every path that supports it.
std::vector<Case> on_all_paths(const std::vector<Case>& cases) {
  std::vector<Case> all;
  for (Case c : cases) {
    c.cuda_path = FLASH_KDA_CUDA_PATH_TWO_KERNEL;
    all.push_back(c);
    if (c.gate_dtype != BF16) continue;
    c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
    all.push_back(c);
  }
  return all;
}

}  // namespace

const std::vector<Case>& cuda_forward_cases() {
  static const std::vector<Case> cases = on_all_paths(make_forward_cases());
  return cases;
}

const std::vector<Case>& cuda_small_cases() {
  static const std::vector<Case> cases = on_all_paths({
      bf16({.B = 2, .T = 37}),
      fp32_gate({.H = 1, .HV = 2, .lengths = {1, 0, 16, 35}, .rows_after = 3, .layout = Layout::kFused}),
      bf16({.lengths = {1, 15, 16, 17, 1, 31, 33, 2},
            .initial = kPool,
            .final = kPool,
            .in_place = true,
            .flags = true}),
      bf16({.T = 20, .H = 140, .initial_dtype = BF16, .final_dtype = BF16}),
      bf16({.T = 600, .H = 1}),  // long enough for helpers of the fused kernel
  });
  return cases;
}

}  // namespace flash_kda::test

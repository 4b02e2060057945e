#include "support/tables.h"

namespace flash_kda::test {
namespace {

constexpr auto F32 = FLASH_KDA_F32;
constexpr auto BF16 = FLASH_KDA_BF16;
constexpr auto F16 = FLASH_KDA_F16;
constexpr auto kSoftplus = FLASH_KDA_GATE_SOFTPLUS;
constexpr auto kLog = FLASH_KDA_GATE_LOG;
constexpr auto kProbabilities = FLASH_KDA_BETA_PROBABILITIES;
constexpr auto kTwice = FLASH_KDA_BETA_TWICE_SIGMOID;
constexpr auto kNone = StateRows::kAbsent;
constexpr auto kPool = StateRows::kPool;

/// Lengths that are one short of, equal to and one past every chunk size in use, and single tokens between them.
const std::vector<int64_t> kTails{1, 15, 16, 17, 1, 31, 33, 63, 64, 65, 1};
const std::vector<int64_t> kWithEmpty{0, 5, 0, 0, 40, 16, 0};

}  // namespace

const std::vector<Case>& forward_cases() {
  static const std::vector<Case> cases{
      // Lengths
      {.T = 0},
      {.T = 1},
      {.T = 2},
      {.T = 15},
      {.T = 16},
      {.T = 17},
      {.B = 3, .T = 31},
      {.B = 2, .T = 63},
      {.T = 65},
      {.T = 500},
      {.T = 1000, .H = 1},
      {.B = 0, .T = 64},
      {.lengths = kTails},
      {.lengths = kTails, .wide_cu_seqlens = true, .layout = Layout::kFused},
      {.K = 64, .lengths = kTails, .rows_after = 9, .layout = Layout::kPadded},
      {.lengths = kWithEmpty},
      {.lengths = kWithEmpty, .initial = kNone, .final_dtype = BF16},
      {.lengths = {0, 0, 0}},
      {.lengths = {0}, .rows_after = 4},
      {.H = 1, .lengths = std::vector<int64_t>(70, 3)},

      // Head dimensions and heads
      {.T = 100, .K = 1},
      {.T = 100, .K = 2, .V = 1},
      {.T = 100, .K = 60},
      {.T = 100, .K = 100},
      {.T = 100, .K = 64},
      {.T = 100, .H = 1, .K = 256},
      {.T = 100, .K = 64, .V = 128},
      {.T = 100, .K = 128, .V = 64},
      {.T = 100, .K = 60, .V = 256},
      {.T = 100, .K = 256, .V = 1},
      {.T = 50, .K = 17, .V = 33, .layout = Layout::kPadded},
      {.T = 50, .K = 100, .V = 60, .qkv = BF16, .layout = Layout::kFused},
      {.T = 70, .H = 1, .HV = 4},
      {.B = 2, .T = 70, .H = 2, .HV = 6, .K = 64, .V = 32},
      {.T = 40, .H = 12, .K = 64},
      {.H = 1, .HV = 2, .lengths = kTails, .layout = Layout::kPadded, .initial = kPool, .final = kPool},

      // Types
      {.T = 100, .qkv = BF16, .gate_dtype = BF16, .beta_dtype = BF16, .out = BF16},
      {.T = 100, .qkv = BF16, .gate_dtype = F32, .beta_dtype = F32, .out = BF16, .layout = Layout::kFused},
      {.T = 100, .qkv = BF16, .gate_dtype = BF16, .beta_dtype = BF16, .out = F32, .layout = Layout::kPadded},
      {.T = 100, .qkv = F16, .gate_dtype = F16, .beta_dtype = F16, .out = F16},
      {.T = 100, .qkv = F32, .gate_dtype = BF16, .beta_dtype = F16, .out = BF16},
      {.T = 100, .initial_dtype = BF16, .final_dtype = F32},
      {.T = 100, .initial_dtype = F32, .final_dtype = BF16},
      {.T = 100, .initial_dtype = F16, .final_dtype = F16, .in_place = true},
      {.T = 100, .initial_dtype = BF16, .final_dtype = BF16, .in_place = true},
      {.qkv = BF16, .gate_dtype = BF16, .beta_dtype = BF16, .out = BF16, .initial_dtype = BF16, .final_dtype = BF16},

      // Gates
      {.T = 200, .family = Family::kF2},
      {.T = 200, .family = Family::kF3},
      {.T = 200, .gate_parameters = false},
      {.T = 200, .flat_dt_bias = true},
      {.T = 200, .family = Family::kF5, .lower_bound = -1.0F},
      {.T = 200, .family = Family::kF5, .lower_bound = -0.01F},
      {.T = 200, .gate = kSoftplus},
      {.T = 200, .gate = kSoftplus, .gate_parameters = false},
      {.T = 200, .family = Family::kF5, .gate = kSoftplus},
      {.T = 200, .family = Family::kTrained, .gate = kSoftplus},
      {.B = 2, .T = 129, .K = 64, .family = Family::kTrained, .gate = kSoftplus, .flat_dt_bias = true},
      {.T = 200, .family = Family::kExtreme, .gate = kSoftplus},
      {.K = 60, .lengths = kTails, .family = Family::kExtreme, .gate = kSoftplus},
      {.T = 200, .gate = kLog},
      {.T = 200, .family = Family::kF5, .gate = kLog},
      {.T = 200, .family = Family::kNoDecay, .gate = kLog},
      {.T = 200, .family = Family::kExtreme, .gate = kLog},
      {.T = 200, .gate_dtype = BF16, .family = Family::kExtreme, .gate = kLog},
      {.T = 200, .qkv = BF16, .gate_dtype = F16, .out = BF16, .gate = kLog},

      // beta, norm, scale
      {.T = 200, .beta_form = kProbabilities},
      {.T = 200, .beta_form = kTwice},
      {.T = 200, .family = Family::kF4, .beta_form = kTwice},
      {.T = 200, .family = Family::kF6, .beta_form = kProbabilities},
      {.T = 200, .l2norm = false},
      {.T = 200, .family = Family::kF3, .beta_form = kProbabilities, .l2norm = false},
      {.T = 100, .qkv = BF16, .out = BF16, .l2norm = false, .layout = Layout::kFused},
      {.T = 100, .scale = 1.0F},
      {.T = 100, .scale = -0.25F},
      {.T = 100, .batch_invariant = true},

      // States
      {.T = 100, .initial = kNone},
      {.T = 100, .final = kNone},
      {.T = 100, .initial = kNone, .final = kNone},
      {.B = 4, .T = 40, .flags = true},
      {.B = 3, .T = 20, .in_place = true},
      {.lengths = kTails, .initial = kPool, .final = kPool},
      {.lengths = kTails, .initial = kPool, .final = kPool, .in_place = true},
      {.lengths = kTails, .initial = kPool, .final = kPool, .in_place = true, .flags = true},
      {.lengths = kTails, .initial = kPool, .initial_dtype = BF16, .final = kPool, .final_dtype = F32},
      {.lengths = kTails, .initial = kPool, .final_dtype = BF16},
      {.lengths = kTails, .initial = StateRows::kRows, .final = kPool},
      {.lengths = kTails, .initial = kPool, .final = kNone},
      {.B = 9, .T = 20, .K = 60, .initial = kPool, .final = kPool, .in_place = true},

      // Checkpoints: at the beginning, at both sides of the end, past it, several of one sequence, of an empty one
      {.T = 300, .checkpoints = {{0, 0}, {0, 64}, {0, 256}, {0, 128}, {0, 320}}},
      {.B = 2, .checkpoints = {{1, 64}, {0, 64}, {0, 0}}},
      {.lengths = {64, 0, 130, 63},
       .checkpoints = {{0, 64}, {1, 0}, {1, 64}, {2, 128}, {3, 64}, {2, 0}, {2, 64}},
       .checkpoint_pool = true},
      {.lengths = {64, 0, 130, 63, 70, 70, 70},
       .initial = kPool,
       .final = kPool,
       .checkpoints = {{0, 64}, {2, 128}, {4, 64}, {5, 0}, {5, 64}, {6, 64}},
       .checkpoint_pool = true},
      {.T = 200,
       .K = 60,
       .qkv = BF16,
       .family = Family::kF3,
       .final = kNone,
       .final_dtype = BF16,
       .checkpoints = {{0, 128}, {0, 192}}},
  };
  return cases;
}

const std::vector<Case>& decode_cases() {
  static const std::vector<Case> cases{
      {.B = 7, .T = 1, .initial = kPool, .final = kPool, .in_place = true},
      {.B = 8,
       .T = 1,
       .H = 12,
       .qkv = BF16,
       .gate_dtype = BF16,
       .beta_dtype = BF16,
       .out = BF16,
       .initial = kPool,
       .final = kPool,
       .in_place = true},
      {.B = 3, .T = 8, .initial = kPool, .final = kPool, .in_place = true},
      {.B = 9, .T = 4, .layout = Layout::kPadded, .initial = kPool, .final = kPool, .in_place = true, .flags = true},
      {.B = 5, .T = 3, .H = 2, .HV = 4, .K = 64, .V = 128, .initial = kPool, .final = kPool, .in_place = true},
      {.B = 5, .T = 2, .K = 60, .V = 100, .qkv = F16, .out = F16, .initial = kPool, .final = kPool, .in_place = true},
      {.B = 2, .T = 5, .K = 256, .initial = kPool, .final = kPool, .in_place = true},
      {.B = 8, .T = 1, .K = 1, .initial = kPool, .final = kPool, .in_place = true},
      {.lengths = {1, 8, 0, 2, 1, 3, 4, 1}, .initial = kPool, .final = kPool, .in_place = true},
      {.lengths = {1, 8, 0, 2, 1},
       .rows_after = 3,
       .qkv = BF16,
       .out = BF16,
       .layout = Layout::kFused,
       .in_place = true},
      {.B = 4, .T = 1, .in_place = true},
      {.B = 4, .T = 0, .in_place = true},
      {.B = 0, .T = 1, .in_place = true},
      {.B = 4, .T = 6, .initial_dtype = BF16, .final_dtype = BF16, .in_place = true},
      {.B = 4, .T = 2, .initial_dtype = F16, .final_dtype = F16, .in_place = true},
      {.B = 2, .T = 8, .family = Family::kF6, .in_place = true},
      {.B = 2, .T = 8, .family = Family::kF7, .in_place = true},
      {.B = 2, .T = 8, .family = Family::kTrained, .gate = kSoftplus, .in_place = true},
      {.B = 2, .T = 8, .family = Family::kExtreme, .gate = kSoftplus, .in_place = true},
      {.B = 2, .T = 8, .gate = kLog, .beta_form = kProbabilities, .l2norm = false, .in_place = true},
      {.B = 2, .T = 3, .beta_form = kTwice, .scale = 0.5F, .in_place = true},
  };
  return cases;
}

const std::vector<Case>& accuracy_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> rows;
    for (Family family :
         {Family::kF1, Family::kF2, Family::kF3, Family::kF4, Family::kF5, Family::kF6, Family::kF7, Family::kF8})
      rows.push_back({.T = 1024, .H = 4, .family = family});
    return rows;
  }();
  return cases;
}

}  // namespace flash_kda::test

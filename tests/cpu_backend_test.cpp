// The CPU kernels below the interface: every compiled body against the fp64 recurrence, and what must not change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "api/plan.h"
#include "api/validate.h"
#include "cpu/chunked/chunked.h"
#include "cpu/instruction_set.h"
#include "cpu/plan.h"
#include "cpu/recurrent/recurrent.h"
#include "support/compare.h"
#include "support/problem.h"
#include "support/tables.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 1;

/// How a call is spread and which body runs; value_split 0 leaves the plan's choice.
struct Execution {
  cpu::InstructionSet instruction_set = cpu::usable_instruction_sets().front();
  int threads = 2;
  int value_split = 0;
};

template <typename Args>
void run(const Args& args, const Execution& execution) {
  const Params params = validate(args, Purpose::kRun);
  Machine machine;
  machine.cpu_threads = execution.threads;
  machine.instruction_set = execution.instruction_set;
  Plan plan = make_plan(params, machine);
  if (execution.value_split > 0) {
    plan.tasks = plan.tasks / plan.value_split * execution.value_split;
    plan.value_split = execution.value_split;
  }
  if (plan.path == Path::kCpuRecurrent)
    cpu::run_recurrent(params, plan);
  else
    cpu::run_chunked(params, plan);
}

Problem run_forward(const Case& c, const Execution& execution) {
  Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
  run(problem.forward_args(), execution);
  return problem;
}

Problem run_decode(const Case& c, const Execution& execution) {
  Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
  run(problem.decode_args(), execution);
  return problem;
}

Problem run_oracle(const Case& c) {
  Problem oracle(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE);
  const flash_kda_forward_args args = oracle.forward_args();
  EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  return oracle;
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) { return name_of(info.param); }

class CpuForward : public testing::TestWithParam<Case> {};

TEST_P(CpuForward, EveryInstructionSetAgreesWithTheRecurrence) {
  const Problem oracle = run_oracle(GetParam());
  for (cpu::InstructionSet set : cpu::usable_instruction_sets())
    EXPECT_EQ(faults(run_forward(GetParam(), {.instruction_set = set}), oracle, fp32_tolerance(GetParam())), "")
        << cpu::name_of(set);
}

INSTANTIATE_TEST_SUITE_P(Grid, CpuForward, testing::ValuesIn(forward_cases()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Accuracy, CpuForward, testing::ValuesIn(accuracy_cases()), name_of_case);

class CpuDecode : public testing::TestWithParam<Case> {};

TEST_P(CpuDecode, EveryInstructionSetAgreesWithTheRecurrence) {
  const Problem oracle = run_oracle(GetParam());
  for (cpu::InstructionSet set : cpu::usable_instruction_sets())
    EXPECT_EQ(faults(run_decode(GetParam(), {.instruction_set = set}), oracle, fp32_tolerance(GetParam())), "")
        << cpu::name_of(set);
}

INSTANTIATE_TEST_SUITE_P(Grid, CpuDecode, testing::ValuesIn(decode_cases()), name_of_case);

/// Shapes whose V falls into several blocks, the last of them incomplete, with everything that a task owns a part of.
const std::vector<Case>& split_cases() {
  static const std::vector<Case> cases{
      {.T = 100, .H = 1},
      {.T = 70, .H = 1, .K = 60, .V = 100, .qkv = FLASH_KDA_BF16, .out = FLASH_KDA_BF16},
      {.H = 1,
       .HV = 2,
       .K = 64,
       .V = 256,
       .lengths = {1, 40, 0, 17, 64, 130},
       .layout = Layout::kPadded,
       .initial = StateRows::kPool,
       .final = StateRows::kPool,
       .in_place = true,
       .checkpoints = {{5, 64}, {5, 128}, {4, 64}}},
      {.T = 80, .family = Family::kExtreme, .gate = FLASH_KDA_GATE_SOFTPLUS},
  };
  return cases;
}

TEST(CpuBits, ThreadsAndValueSplitChangeNothing) {
  for (const Case& c : split_cases())
    for (cpu::InstructionSet set : cpu::usable_instruction_sets()) {
      const Problem expected = run_forward(c, {.instruction_set = set, .threads = 1, .value_split = 1});
      const int blocks = (c.value_dim() + cpu::kValueBlock - 1) / cpu::kValueBlock;
      for (int threads : {1, 2, 5})
        for (int split = 1; split <= blocks; ++split)
          EXPECT_EQ(bitwise_faults(run_forward(c, {set, threads, split}), expected), "")
              << c << ' ' << cpu::name_of(set) << " threads " << threads << " split " << split;
    }
}

TEST(CpuBits, DecodeThreadsAndValueSplitChangeNothing) {
  const Case c{.B = 3, .T = 4, .V = 100, .in_place = true};
  for (cpu::InstructionSet set : cpu::usable_instruction_sets()) {
    const Problem expected = run_decode(c, {.instruction_set = set, .threads = 1, .value_split = 1});
    for (int threads : {1, 2, 5})
      for (int split = 1; split <= 4; ++split)
        EXPECT_EQ(bitwise_faults(run_decode(c, {set, threads, split}), expected), "")
            << cpu::name_of(set) << " threads " << threads << " split " << split;
  }
}

/// `rows` tokens of a [B, T, ...] tensor from `first` on.
flash_kda_tensor tokens_of(flash_kda_tensor t, int64_t first, int64_t rows) {
  t.data = static_cast<unsigned char*>(t.data) + first * t.strides[1] * size_of(static_cast<flash_kda_dtype>(t.dtype));
  t.shape[1] = rows;
  return t;
}

/// The case by calls of `piece` tokens, each of which goes on from the state of the one before.
Problem run_in_pieces(const Case& c, int64_t piece, cpu::InstructionSet set) {
  Problem parts(c, kSeed, FLASH_KDA_BACKEND_CPU);
  for (int64_t first = 0; first < c.T; first += piece) {
    flash_kda_forward_args args = parts.forward_args();
    for (auto member : {&flash_kda_forward_args::q, &flash_kda_forward_args::k, &flash_kda_forward_args::v,
                        &flash_kda_forward_args::g, &flash_kda_forward_args::beta, &flash_kda_forward_args::out})
      args.*member = tokens_of(args.*member, first, std::min(piece, c.T - first));
    if (first > 0) args.initial_state = args.final_state;
    run(args, {.instruction_set = set});
  }
  return parts;
}

TEST(CpuBits, SplitAtAChunkIsTheSame) {
  const Case c{.T = 150, .H = 2, .HV = 4, .V = 60};
  for (cpu::InstructionSet set : cpu::usable_instruction_sets()) {
    const Problem whole = run_forward(c, {.instruction_set = set});
    for (int64_t piece : {cpu::kChunk, 4 * cpu::kChunk, 9 * cpu::kChunk})
      EXPECT_EQ(bitwise_faults(run_in_pieces(c, piece, set), whole), "") << cpu::name_of(set) << " pieces of " << piece;
  }
}

/// A call of at most kChunk tokens is one chunk of as many: calls of C tokens compute with chunks of C.
TEST(CpuChunk, ChunkSizeDoesNotMatter) {
  for (const Case& c : {Case{.T = 50}, Case{.T = 50, .K = 60, .V = 33, .family = Family::kF3},
                        Case{.T = 50, .H = 1, .family = Family::kF7},
                        Case{.T = 50, .H = 1, .family = Family::kExtreme, .gate = FLASH_KDA_GATE_SOFTPLUS}}) {
    const Problem oracle = run_oracle(c);
    for (cpu::InstructionSet set : cpu::usable_instruction_sets())
      for (int64_t chunk : {1, 3, 4, 7, 8, 15, cpu::kChunk})
        EXPECT_EQ(faults(run_in_pieces(c, chunk, set), oracle, fp32_tolerance(c)), "")
            << c << ' ' << cpu::name_of(set) << " chunk " << chunk;
  }
}

/// A NaN or infinity in one token reaches later tokens of its sequence and head and nothing else.
TEST(CpuFaults, NotANumberStaysInItsSequenceAndHead) {
  const Case c{.H = 2, .K = 60, .V = 33, .lengths = {20, 40, 20}};
  const int64_t token = 20 + 18, head = 1;
  for (cpu::InstructionSet set : cpu::usable_instruction_sets()) {
    const Problem clean = run_forward(c, {.instruction_set = set});
    for (const char* name : {"q", "k", "v", "g", "beta"})
      for (double poison : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        const Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
        const flash_kda_tensor& input = problem.tensor(name);
        const int64_t at[] = {0, token, head, 7};
        test::set(input, at, poison);
        run(problem.forward_args(), {.instruction_set = set});
        if (std::isnan(poison)) {
          ASSERT_TRUE(std::isnan(get(problem.tensor("out"), at))) << name;
        }
        for_each_element(clean.tensor("out"), [&](const int64_t* i, int64_t offset) {
          if (i[2] == head && i[1] >= token && i[1] < 60) return;
          const flash_kda_tensor& out = problem.tensor("out");
          ASSERT_EQ(get(out, i), get(clean.tensor("out"), i))
              << name << " token " << i[1] << " head " << i[2] << offset;
        });
        for_each_element(clean.tensor("final_state"), [&](const int64_t* i, int64_t) {
          if (i[0] == 1 && i[1] == head) return;
          ASSERT_EQ(get(problem.tensor("final_state"), i), get(clean.tensor("final_state"), i)) << name;
        });
      }
  }
}

/// Which of two rows that write one slot wins is open; that neither breaks anything else is not.
TEST(CpuFaults, TwoRowsMayWriteOneSlot) {
  const Case c{.B = 3, .T = 20, .K = 64, .initial = StateRows::kPool, .final = StateRows::kPool};
  Problem problem(c, kSeed, FLASH_KDA_BACKEND_CPU);
  flash_kda_forward_args args = problem.forward_args();
  const std::vector<int32_t> one_slot(3, 0);
  args.write_index.data = const_cast<int32_t*>(one_slot.data());
  run(args, {.threads = 3});
  EXPECT_EQ(problem.stray_writes(), "");
  EXPECT_EQ(bitwise_difference(problem.tensor("out"), run_forward(c, {}).tensor("out")), "");
}

}  // namespace
}  // namespace flash_kda::test

// Faults that users of such kernels reported, by the ids of docs/cases.md, on the GPU. Inputs that no sequence owns,
// guards and untouched outputs are poisoned with NaN (support/problem.h). What the GPU refuses is in refusal_test.cpp,
// what is too large for the CPU's recurrence in
// reference_test.cpp, and the cases of the run time in runtime_test.cpp.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "api/params.h"
#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "cuda/solve.h"
#include "support/compare.h"
#include "support/emulation.h"
#include "support/number_cases.h"
#include "support/random.h"
#include "support/total_decay.h"

namespace flash_kda::test {
namespace {

using Args = flash_kda_forward_args;
constexpr auto BF16 = FLASH_KDA_BF16;
constexpr auto F32 = FLASH_KDA_F32;
constexpr auto kNone = StateRows::kAbsent;
constexpr auto kProbabilities = FLASH_KDA_BETA_PROBABILITIES;

// ---- Cases that are one call on the right inputs ----

struct Row {
  const char* name;
  Case shape;
  Change change{};
};

void PrintTo(const Row& row, std::ostream* stream) { *stream << row.name << ' ' << row.shape; }

void parallel_keys(const Problem& p) {
  const Random direction(1, 100), noise(1, 101);
  assign(p, "k", [&](const int64_t* at) {
    return direction.normal(static_cast<uint64_t>(at[2] * 128 + at[3])) +
           0.1 * noise.normal(static_cast<uint64_t>((at[1] * 2 + at[2]) * 128 + at[3]));
  });
  assign(p, "beta", [](const int64_t*) { return 8.0; });
}

void large_and_small_state(const Problem& p) {
  set(p.tensor("initial_state"), {0, 0, 3, 5}, 65536);
  set(p.tensor("initial_state"), {0, 0, 7, 9}, 1e-6);
}

void gates_of_heads(const Problem& p) {
  assign(p, "g", [](const int64_t* at) { return at[2] == 0 ? 0.0 : -10.0; });
}

/// Lengths 16 + 1 to 16 + 15 and 1 to 15 in turn.
std::vector<int64_t> every_tail() {
  std::vector<int64_t> lengths;
  for (int64_t tail = 1; tail <= 15; ++tail) lengths.push_back(tail % 2 == 0 ? tail : 16 + tail);
  return lengths;
}

std::vector<int64_t> mostly_empty(bool ends) {
  std::vector<int64_t> lengths(1000, 0);
  for (size_t n : {333, 334, 667}) lengths[n] = 20;
  if (ends) lengths.front() = lengths.back() = 3;
  return lengths;
}

/// A function, for main() sets the path of the cases first.
std::vector<Row> rows() {
  return {
      {"C02_NearParallelKeys", bf16({.T = 512, .family = Family::kF6}), parallel_keys},
      {"C07_SlowConstantGateOverALongSequence", bf16({.T = 8192, .H = 1, .family = Family::kF8})},
      {"C09_StateOfLargeAndSmallElements", bf16({.T = 100, .H = 1, .family = Family::kF3}), large_and_small_state},

      {"C11_FixedLengthTail63", bf16({.T = 63})},
      {"C11_FixedLengthTail500", bf16({.T = 500})},
      {"C11_FixedLengthTail1000", bf16({.T = 1000})},
      {"C13_WeakGateTail", bf16({.B = 2, .T = 75, .H = 4, .family = Family::kF3})},
      {"C14_NaNBehindEveryRow1", bf16({.B = 2, .T = 1, .layout = Layout::kFused})},
      {"C14_NaNBehindEveryRow17", bf16({.B = 2, .T = 17, .layout = Layout::kFused})},
      {"C14_NaNBehindEveryRow30", bf16({.B = 2, .T = 30, .layout = Layout::kFused})},
      {"C15_SingleTokensAroundALongSequence", bf16({.lengths = {1, 1, 1, 700, 1, 16, 1}})},
      {"C16_SmallNeighboursWithEveryTail", bf16({.H = 1, .lengths = every_tail()})},
      {"C18_EmptySequenceWithoutInitialState", bf16({.lengths = {5, 0, 20}, .initial = kNone, .final_dtype = BF16})},
      {"C20_ManyEmptySequences", bf16({.H = 1, .lengths = mostly_empty(false)})},
      {"C20_ManyEmptySequencesBetweenEnds", bf16({.H = 1, .lengths = mostly_empty(true), .wide_cu_seqlens = true})},
      {"C21_EmptyLastSequenceH1", bf16({.H = 1, .lengths = {64, 0}})},
      {"C21_EmptyLastSequenceH16", bf16({.H = 16, .lengths = {64, 0}})},
      {"C22_ShortNeighbours", bf16({.H = 4, .lengths = {57, 2, 5}})},
      {"C23_LastRowBelongsToNobody", bf16({.lengths = {63}, .rows_after = 1})},
      {"C24_SmallNaNBehindTheLastSequence", bf16({.lengths = {17, 30}, .rows_after = 17})},
      {"C24_NaNBehindTheLastSequenceWithFp32Gate", fp32_gate({.lengths = {17, 30}, .rows_after = 33})},

      {"C27_EveryHeadUsesItsOwnGate", bf16({.T = 100, .H = 4}), gates_of_heads},
      {"C29_SlicesOfOneFusedBuffer", bf16({.B = 2, .T = 100, .layout = Layout::kFused})},
      {"C29_SlicesOfOneFusedBufferWithGroupedHeads", bf16({.T = 100, .H = 2, .HV = 6, .layout = Layout::kFused})},
      {"C32_BiasOfEveryChannel", bf16({.T = 50, .family = Family::kF5})},
      {"C32_FlatBiasOfEveryChannel", bf16({.T = 50, .family = Family::kF5, .flat_dt_bias = true})},
      {"C36_GroupedValueHeads", bf16({.B = 4, .T = 256, .H = 16, .HV = 32})},
  };
}

class CaseRows : public testing::TestWithParam<Row> {};
TEST_P(CaseRows, AgreesWithTheRecurrence) { expect_right(GetParam().shape, GetParam().change); }
INSTANTIATE_TEST_SUITE_P(Cases, CaseRows, testing::ValuesIn(rows()), [](const auto& row) { return row.param.name; });

// ---- Numbers ----

void expect_as_right_as_emulated(const Case& c, const Change& change) {
  const Problem emulated = problem_of(c, change);
  emulate(emulated, plan_of(c, change).chunk);
  EXPECT_EQ(faults_beyond_emulation(solve(c, change), emulated, solve_by_oracle(c, change)), "");
}

/// The keys are one direction, v repeats with the chunk and hardly anything decays, so each chunk adds the same
/// rounding of the restored keys to the state, in directions that no key ever asks for: the outputs are right, and of
/// the state only the part that keys can see (emulated in chunks of 16: 9.2e-3 for the output, 1.7 for the state).
TEST(Cases, C01_IdenticalKeysWithoutDecayOverALongSequence) {
  expect_as_right_as_emulated(bf16({.H = 1, .lengths = {16384}, .family = Family::kF7}), [](const Problem& p) {
    assign(p, "initial_state", [](const int64_t*) { return 0.0; });
    const flash_kda_tensor& v = p.tensor("v");
    assign(p, "v", [&](const int64_t* at) { return get(v, {0, at[1] % 16, 0, at[3]}); });
  });
}

TEST(Cases, C10_LongKeysWithoutNorm) { expect_as_right_as_emulated(bf16({.T = 1, .l2norm = false}), set_long_keys); }

TEST(Cases, C08_ALogAtItsLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Case c = bf16({.T = 20, .H = 1});
  const auto limit = [](float A_log) {
    return [A_log](const Problem& p) { assign(p, "A_log", [&](const int64_t*) { return A_log; }); };
  };
  const auto zero = [](float A_log) { return [A_log](const Problem& p) { set_zero_gate_arguments(p, A_log); }; };
  const Problem half = solve_by_oracle(c, zero(0));
  for (float A_log : {-kInfinity, 100.0F, kInfinity}) {
    EXPECT_EQ(faults(solve(c, zero(A_log)), half, bf16_tolerance(c)), "") << A_log;
    EXPECT_EQ(faults(solve(c, limit(A_log)), solve_by_oracle(c, limit(A_log)), bf16_tolerance(c)), "") << A_log;
  }
}

/// Without decay and correction the state comes back as it was, bit by bit.
TEST(Cases, C09_StateThatNothingChanges) {
  const Problem p = solve(bf16({.T = 100, .H = 1, .beta_form = kProbabilities}), [](const Problem& x) {
    large_and_small_state(x);
    assign(x, "g", [](const int64_t*) { return -1e6; });
    assign(x, "beta", [](const int64_t*) { return 0.0; });
  });
  EXPECT_EQ(bitwise_difference(p.tensor("final_state"), p.tensor("initial_state")), "");
}

// ---- Tails and packed sequences ----

TEST(Cases, C12_GateTypesInTurn) {
  expect_right(fp32_gate({.T = 1500, .H = 1}));
  expect_right(bf16({.T = 1500, .H = 1}));
}

/// Each sequence of a packed batch against a call of its own, bit by bit.
void expect_each_as_if_alone(Case c) {
  c.batch_invariant = true;
  const Problem batch = solve(c), alone = problem_of(c);
  const DeviceProblem device(alone);
  int64_t begin = 0;
  for (int64_t n = 0; n < c.sequences(); begin += c.length(n++)) {
    Args args = slice_tokens(device.args(), begin, c.length(n));
    args.initial_state = slice(args.initial_state, 0, n, 1);
    args.final_state = slice(args.final_state, 0, n, 1);
    args.cu_seqlens = {};
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  }
  device.download(alone);
  EXPECT_EQ(bitwise_faults(batch, alone), "");
}

TEST(Cases, C15_SingleTokensAroundALongSequenceAsIfAlone) {
  expect_each_as_if_alone(bf16({.lengths = {1, 1, 1, 700, 1, 16, 1}}));
}

TEST(Cases, C16_NeighboursWithEveryTailAsIfAlone) { expect_each_as_if_alone(bf16({.lengths = every_tail()})); }

TEST(Cases, C17_LastTokenInACallOfItsOwn) {
  for (int64_t T : {2, 17, 64, 100}) {
    const Case c = bf16({.T = T, .in_place = true});
    const Problem parts = problem_of(c);
    const DeviceProblem device(parts);
    for (const Args& args : {slice_tokens(device.args(), 0, T - 1), slice_tokens(device.args(), T - 1, 1)})
      ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    device.download(parts);
    EXPECT_EQ(faults(parts, solve_by_oracle(c), bf16_tolerance(c)), "") << T;
  }
}

TEST(Cases, C18_FinalStateOfAnEmptySequenceIsZero) {
  const Problem p = solve(bf16({.lengths = {5, 0, 20}, .initial = kNone, .final_dtype = BF16}));
  for_each_element(p.tensor("final_state"), [&](const int64_t* at, int64_t) {
    const double element = get(p.tensor("final_state"), at);
    ASSERT_TRUE(at[0] == 1 ? element == 0 && !std::signbit(element) : std::isfinite(element));
  });
}

TEST(Cases, C19_NothingButEmptySequences) {
  for (int H : {1, 4})
    for (flash_kda_dtype dtype : {F32, BF16})
      for (StateRows initial : {kNone, StateRows::kRows}) {
        const Problem p = solve(
            bf16({.H = H, .lengths = {0, 0, 0}, .initial = initial, .initial_dtype = dtype, .final_dtype = dtype}));
        EXPECT_EQ(p.stray_writes(), "");
        for_each_element(p.tensor("final_state"), [&](const int64_t* at, int64_t) {
          ASSERT_EQ(get(p.tensor("final_state"), at), initial == kNone ? 0 : get(p.tensor("initial_state"), at));
        });
      }
}

/// cu_seqlens of one entry: rows, but nobody who owns them.
TEST(Cases, C19_SmallNoSequences) {
  const Case c = bf16({.lengths = {40}, .initial = kNone, .final = kNone});
  const Problem problem = problem_of(c);
  const DeviceProblem device(problem);
  Args args = device.args();
  args.cu_seqlens.shape[0] = 1;
  size_t bytes = 1;
  ASSERT_EQ(flash_kda_forward_workspace_size(&args, &bytes), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bytes, 0U);
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(problem);
  EXPECT_EQ(problem.stray_writes(true), "");
}

/// A cu_seqlens that no host has checked: the results are undefined, the accesses are not. Every read that leaves its
/// tensor is for compute-sanitizer to see, every write for the guards.
template <typename Index>
void expect_contained(const std::vector<Index>& cu_seqlens, const Case& c) {
  const Problem problem = problem_of(c);
  std::memcpy(problem.tensor("cu_seqlens").data, cu_seqlens.data(), cu_seqlens.size() * sizeof(Index));
  const DeviceProblem device(problem);
  const Args args = device.args();
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(problem);
  // Put back what the snapshot has.
  std::memcpy(problem.tensor("cu_seqlens").data, problem.before(*problem.find("cu_seqlens")).data,
              cu_seqlens.size() * sizeof(Index));
  EXPECT_EQ(problem.stray_writes(), "") << fmt::format("{}", fmt::join(cu_seqlens, ", "));
}

TEST(Cases, SmallMalformedCuSeqlens) {
  constexpr int32_t kLow = std::numeric_limits<int32_t>::min(), kHigh = std::numeric_limits<int32_t>::max();
  const Case narrow = bf16({.H = 1, .lengths = {20, 1, 30, 17}});  // T = 68
  for (const std::vector<int32_t>& cu : std::vector<std::vector<int32_t>>{{0, 20, 10, 51, 68},
                                                                          {68, 51, 21, 20, 0},
                                                                          {0, 68, 0, 68, 0},
                                                                          {0, 20, 21, 51, 69},
                                                                          {0, 1000000, 21, 51, 68},
                                                                          {40, 41, 42, 43, 44},
                                                                          {-5, -4, -3, -2, -1},
                                                                          {kHigh, kLow, kHigh, kLow, kHigh},
                                                                          {0, 0, kHigh, kHigh, kHigh}})
    expect_contained(cu, narrow);
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(), kHighest = std::numeric_limits<int64_t>::max();
  Case wide = narrow;
  wide.wide_cu_seqlens = true;
  for (const std::vector<int64_t>& cu :
       std::vector<std::vector<int64_t>>{{0, int64_t{1} << 32, int64_t{1} << 33, 51, 68},
                                         {kHighest, kLowest, kHighest, kLowest, kHighest},
                                         {kLowest, kHighest, kLowest, kHighest, kLowest}})
    expect_contained(cu, wide);
  // More sequences than one round of the search takes.
  const Case many = bf16({.H = 1, .lengths = std::vector<int64_t>(100, 1)});
  std::vector<int32_t> cu(101);
  const Random random(1, 1);
  for (size_t n = 0; n < cu.size(); ++n) cu[n] = static_cast<int32_t>(200 * random.uniform(n)) - 50;
  expect_contained(cu, many);
}

/// The opt-in check reads cu_seqlens back and names the first bad entry, before anything runs.
TEST(Cases, CheckedCuSeqlens) {
  const Case c = bf16({.H = 1, .lengths = {20, 1, 30, 17}});
  const auto status_with = [&](const std::vector<int32_t>& cu_seqlens) {
    const Problem problem = problem_of(c, [&](const Problem& p) {
      std::memcpy(p.tensor("cu_seqlens").data, cu_seqlens.data(), cu_seqlens.size() * sizeof(int32_t));
    });
    const DeviceProblem device(problem);
    Args args = device.args();
    args.check_cu_seqlens = 1;
    const flash_kda_status status = flash_kda_forward(&args);
    if (status != FLASH_KDA_OK) {
      device.download(problem);
      EXPECT_EQ(problem.stray_writes(true), "");
    }
    return status;
  };
  EXPECT_EQ(status_with({0, 20, 21, 51, 68}), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(status_with({1, 20, 21, 51, 68}), FLASH_KDA_ERROR_VALUE);
  EXPECT_STREQ(flash_kda_last_error(), "cu_seqlens[0]: got 1, accepted is 0");
  EXPECT_EQ(status_with({0, 20, 10, 51, 68}), FLASH_KDA_ERROR_VALUE);
  EXPECT_STREQ(flash_kda_last_error(), "cu_seqlens[2]: got 10 after 20, accepted is a sequence that never decreases");
  EXPECT_EQ(status_with({0, 20, 21, 51, 69}), FLASH_KDA_ERROR_VALUE);
  EXPECT_STREQ(flash_kda_last_error(), "cu_seqlens[4]: got 69, accepted is at most T = 68");
}

// ---- Indexing, layout, types ----

TEST(Cases, C26_LastSlotOfALargePaddedPool) {
  constexpr int64_t kSlot = 8191, kSlotStride = 540672;
  const Case c = bf16({.T = 20});
  const Problem compact = solve(c), inputs = problem_of(c);
  const DeviceProblem device(inputs);
  const DeviceMemory pool(sizeof(float) * static_cast<size_t>((kSlot + 1) * kSlotStride));
  const DeviceMemory index(sizeof(int32_t));
  const int32_t slot = kSlot;
  cuda::check(cudaMemcpy(index.get(), &slot, sizeof slot, cudaMemcpyHostToDevice), "cudaMemcpy");
  Args args = device.args();
  constexpr size_t kStep = sizeof(float) * static_cast<size_t>(kSlotStride), kState = sizeof(float) * 2 * 128 * 128;
  unsigned char* const last = pool.get() + kStep * static_cast<size_t>(kSlot);
  cuda::check(cudaMemcpy(last, args.initial_state.data, kState, cudaMemcpyDeviceToDevice), "cudaMemcpy");
  args.initial_state.data = pool.get();
  args.initial_state.shape[0] = kSlot + 1;
  args.initial_state.strides[0] = kSlotStride;
  args.final_state = args.initial_state;
  args.read_index = {index.get(), FLASH_KDA_I32, 1, {1}, {1}};
  args.write_index = args.read_index;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(inputs);
  EXPECT_EQ(bitwise_difference(inputs.tensor("out"), compact.tensor("out")), "");
  // The slot, the gap behind it and the slot before it.
  std::vector<unsigned char> slots(2 * kStep);
  cuda::check(cudaMemcpy(slots.data(), last - kStep, slots.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  EXPECT_EQ(std::memcmp(&slots[kStep], compact.tensor("final_state").data, kState), 0);
  const auto poisoned = [&](size_t begin, size_t end) {
    return std::all_of(slots.begin() + static_cast<int64_t>(begin), slots.begin() + static_cast<int64_t>(end),
                       [](unsigned char byte) { return byte == kPoison; });
  };
  EXPECT_TRUE(poisoned(0, kStep));
  EXPECT_TRUE(poisoned(kStep + kState, 2 * kStep));
}

TEST(Cases, C28_TotalDecayOfAPartialChunk) {
  const Case c = total_decay_case(bf16({}));
  EXPECT_EQ(total_decay_faults(solve(c, set_total_decay_inputs), solve_by_oracle(c, set_total_decay_inputs)), "");
}

TEST(Cases, C30_BetaWithALargeRowStride) {
  constexpr int64_t kStride = 6288, kT = 50;
  for (const Case& c : {bf16({.T = kT, .H = 12}), fp32_gate({.T = kT, .H = 12})}) {
    const Problem plain = solve(c), inputs = problem_of(c);
    const DeviceProblem device(inputs);
    Args args = device.args();
    std::vector<unsigned char> rows(kT * kStride * sizeof(float), kPoison);
    flash_kda_tensor strided = args.beta;
    strided.strides[0] = kT * kStride;
    strided.strides[1] = kStride;
    const DeviceMemory memory(rows.size());
    constexpr int64_t kFirst = 101;  // elements: neither a row nor an element is aligned
    strided.data = rows.data();
    strided = slice(strided, 2, kFirst, c.H);
    for_each_element(strided, [&](const int64_t* at, int64_t) { set(strided, at, get(inputs.tensor("beta"), at)); });
    cuda::check(cudaMemcpy(memory.get(), rows.data(), rows.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    strided.data = memory.get();
    args.beta = slice(strided, 2, kFirst, c.H);
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    device.download(inputs);
    EXPECT_EQ(bitwise_faults(inputs, plain), "");
  }
}

/// Strides of 0: one row of q, k and g that all tokens, heads and batch rows share.
TEST(Cases, C29_SharedRows) {
  const Case c = bf16({.B = 2, .T = 40, .H = 3});
  const Change same = [](const Problem& p) {
    const flash_kda_tensor &q = p.tensor("q"), &k = p.tensor("k"), &g = p.tensor("g");
    assign(p, "q", [&](const int64_t* at) { return get(q, {at[0], at[1], 0, at[3]}); });
    assign(p, "k", [&](const int64_t* at) { return get(k, {0, at[1], at[2], at[3]}); });
    assign(p, "g", [&](const int64_t* at) { return get(g, {at[0], 0, at[2], at[3]}); });
  };
  const Problem expected = solve(c, same), problem = problem_of(c, same);
  const DeviceProblem device(problem);
  Args args = device.args();
  args.q.strides[2] = 0;
  args.k.strides[0] = 0;
  args.g.strides[1] = 0;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(problem);
  EXPECT_EQ(bitwise_faults(problem, expected), "");
}

TEST(Cases, C31_StateIsValueByKey) {
  const Case c = bf16({.T = 30, .in_place = true});
  const Problem gpu = problem_of(c);
  const DeviceProblem device(gpu);
  const Args args = device.args();
  for (int call = 0; call < 2; ++call) ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(gpu);
  const Problem oracle = solve_by_oracle(c);
  Args second = oracle.forward_args();
  second.initial_state = second.final_state;
  ASSERT_EQ(flash_kda_forward(&second), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(faults(gpu, oracle, bf16_tolerance(c)), "");
}

}  // namespace
}  // namespace flash_kda::test

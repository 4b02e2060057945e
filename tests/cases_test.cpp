// Faults that users of such kernels reported, by the ids of docs/cases.md, on the CPU backend. Every row that can is
// held to the fp64 recurrence; inputs that no sequence owns, guards and untouched outputs are poisoned with NaN
// (support/problem.h).
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "api/params.h"
#include "support/compare.h"
#include "support/number_cases.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/total_decay.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 11;
constexpr auto BF16 = FLASH_KDA_BF16;
constexpr auto kNone = StateRows::kAbsent;
constexpr auto kSoftplus = FLASH_KDA_GATE_SOFTPLUS;
constexpr auto kLog = FLASH_KDA_GATE_LOG;
constexpr auto kProbabilities = FLASH_KDA_BETA_PROBABILITIES;

using Mutation = std::function<void(Problem&)>;

Problem prepare(const Case& c, flash_kda_backend backend, const Mutation& mutate) {
  Problem problem(backend == FLASH_KDA_BACKEND_REFERENCE ? oracle_case(c) : c, kSeed, backend);
  if (mutate) mutate(problem);
  problem.take_snapshot();
  return problem;
}

void run(const Problem& problem) {
  const flash_kda_forward_args args = problem.forward_args();
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
}

/// The case with changed inputs, after the call.
Problem solve(const Case& c, flash_kda_backend backend = FLASH_KDA_BACKEND_CPU, const Mutation& mutate = {}) {
  Problem problem = prepare(c, backend, mutate);
  run(problem);
  return problem;
}

void expect_right(const Case& c, const Mutation& mutate = {}) {
  EXPECT_EQ(
      faults(solve(c, FLASH_KDA_BACKEND_CPU, mutate), solve(c, FLASH_KDA_BACKEND_REFERENCE, mutate), fp32_tolerance(c)),
      "")
      << c;
}

/// `extent` indices of `dimension` from `first` on.
flash_kda_tensor part(flash_kda_tensor t, int dimension, int64_t first, int64_t extent) {
  t.data = static_cast<char*>(t.data) + first * t.strides[dimension] * size_of(static_cast<flash_kda_dtype>(t.dtype));
  t.shape[dimension] = extent;
  return t;
}

Case bf16(Case c) {
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = BF16;
  return c;
}

// ---- Numbers ----

/// v repeats every 16 tokens and so does the chunk, so each repetition rounds alike and the error of the state grows
/// with T: the bar of row F7, which is for T 1024, holds there and cannot hold at T 16384 (docs/cases.md). The state is
/// v k^T, to which a chunk adds 16 updates u_i k_i^T: |u_i| is sqrt(2) |v|, as v_i takes the place of v_(i-1), and each
/// k_i is off by 2^-24 of itself in a direction of its own (a rounding, and a running product of decays). So a chunk is
/// off by sqrt(2 * 16) 2^-24 of the state, and T / 16 chunks by as many times that.
TEST(Cases, C01_IdenticalKeysWithoutDecayOverALongSequence) {
  const Mutation inputs = [](Problem& p) {
    assign(p, "initial_state", [](const int64_t*) { return 0.0; });
    const flash_kda_tensor& v = p.tensor("v");
    assign(p, "v", [&](const int64_t* at) { return get(v, {0, at[1] % 16, 0, at[3]}); });
  };
  for (int64_t T : {1024, 16384}) {
    const Case c = bf16({.H = 1, .lengths = {T}, .family = Family::kF7});
    const Problem cpu = solve(c, FLASH_KDA_BACKEND_CPU, inputs), oracle = solve(c, FLASH_KDA_BACKEND_REFERENCE, inputs);
    const Difference out = difference(cpu, oracle, "out"), state = difference(cpu, oracle, "final_state");
    const double grown = std::sqrt(2.0 * 16.0) * 0x1p-24 * (static_cast<double>(T) / 16.0);
    EXPECT_TRUE(out.within(fp32_tolerance(c))) << T << ' ' << to_string(out, 4);
    EXPECT_TRUE(state.within(T == 1024 ? fp32_tolerance(c) : grown)) << T << ' ' << to_string(state, 4);
    EXPECT_EQ(cpu.stray_writes(), "");
  }
}

TEST(Cases, C02_NearParallelKeys) {
  expect_right({.T = 512, .family = Family::kF6}, [](Problem& p) {
    const Random direction(kSeed, 100), noise(kSeed, 101);
    assign(p, "k", [&](const int64_t* at) {
      return direction.normal(static_cast<uint64_t>(at[2] * 128 + at[3])) +
             0.1 * noise.normal(static_cast<uint64_t>((at[1] * 2 + at[2]) * 128 + at[3]));
    });
    assign(p, "beta", [](const int64_t*) { return 8.0; });
  });
}

TEST(Cases, C03_StrongSoftplusDecayInsideABlock) {
  expect_right({.T = 129, .H = 8, .gate = kSoftplus}, [](Problem& p) {
    assign(p, "A_log", [](const int64_t*) { return 0.0; });
    assign(p, "dt_bias", [](const int64_t*) { return 6.0; });  // gamma = -softplus(6 + z): about -6
  });
}

TEST(Cases, C04_SoftplusIsNotComputedAsBounded) {
  const Case softplus{.T = 100, .family = Family::kTrained, .gate = kSoftplus};
  Case bounded = softplus;
  bounded.gate = FLASH_KDA_GATE_BOUNDED;
  const Problem oracle = solve(softplus, FLASH_KDA_BACKEND_REFERENCE);
  EXPECT_EQ(faults(solve(softplus), oracle, fp32_tolerance(softplus)), "");
  EXPECT_NE(faults(solve(bounded), oracle, 0.1), "") << "the inputs do not tell the two gates apart";
}

TEST(Cases, C05_ExtremeSoftplusNextToChannelsWithoutDecay) {
  const Case c{.T = 256, .H = 4, .family = Family::kExtreme, .gate = kSoftplus};
  double strongest = 0, weakest = 1e9, strongest_sum = 0;
  const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
  for (int64_t h = 0; h < c.H; ++h)
    for (int64_t d = 0; d < c.K; ++d) {
      double sum = 0;
      for (int64_t t = 0; t < 64; ++t) {
        const double x = get(p.tensor("g"), {0, t, h, d}) + get(p.tensor("dt_bias"), {h, d});
        const double decay =
            std::exp(get(p.tensor("A_log"), {h})) * (std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
        strongest = std::max(strongest, decay);
        weakest = std::min(weakest, decay);
        sum += decay;
      }
      strongest_sum = std::max(strongest_sum, sum);
    }
  EXPECT_GE(strongest, 2661);  // nats in one token
  EXPECT_GE(strongest_sum, 6e4);
  EXPECT_LE(weakest, 1e-6);
  expect_right(c);
  expect_right(bf16(c));
}

TEST(Cases, C06_LogGateZero) {
  for (int64_t T : {7, 50, 1000}) expect_right({.T = T, .H = 1, .family = Family::kNoDecay, .gate = kLog});
}

TEST(Cases, C07_SlowConstantGateOverALongSequence) { expect_right({.T = 8192, .H = 1, .family = Family::kF8}); }

TEST(Cases, C08_ALogAtItsLimits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Case c{.T = 20, .H = 1, .K = 64};
  const auto limit = [](float A_log) {
    return [A_log](Problem& p) { assign(p, "A_log", [&](const int64_t*) { return A_log; }); };
  };
  const auto zero = [](float A_log) { return [A_log](Problem& p) { set_zero_gate_arguments(p, A_log); }; };
  const Problem half = solve(c, FLASH_KDA_BACKEND_REFERENCE, zero(0));
  for (float A_log : {-kInfinity, 100.0F, kInfinity}) {
    EXPECT_EQ(faults(solve(c, FLASH_KDA_BACKEND_REFERENCE, zero(A_log)), half, 0), "") << A_log;
    EXPECT_EQ(faults(solve(c, FLASH_KDA_BACKEND_CPU, zero(A_log)), half, fp32_tolerance(c)), "") << A_log;
    for (flash_kda_gate gate : {FLASH_KDA_GATE_BOUNDED, kSoftplus}) {
      Case random = c;
      random.gate = gate;
      const Problem oracle = solve(random, FLASH_KDA_BACKEND_REFERENCE, limit(A_log));
      for_each_element(oracle.tensor("out"),
                       [&](const int64_t* at, int64_t) { ASSERT_TRUE(std::isfinite(get(oracle.tensor("out"), at))); });
      EXPECT_EQ(faults(solve(random, FLASH_KDA_BACKEND_CPU, limit(A_log)), oracle, fp32_tolerance(c)), "") << A_log;
    }
  }
}

TEST(Cases, C09_StateOfLargeAndSmallElements) {
  const Mutation extremes = [](Problem& p) {
    set(p.tensor("initial_state"), {0, 0, 3, 5}, 65536);
    set(p.tensor("initial_state"), {0, 0, 7, 9}, 1e-6);
  };
  expect_right({.T = 100, .H = 1, .family = Family::kF3}, extremes);
  // Without decay and correction both come back as they were.
  const Problem kept = solve({.T = 100, .H = 1, .family = Family::kNoDecay, .gate = kLog, .beta_form = kProbabilities},
                             FLASH_KDA_BACKEND_CPU, [&](Problem& p) {
                               extremes(p);
                               assign(p, "beta", [](const int64_t*) { return 0.0; });
                             });
  EXPECT_EQ(bitwise_difference(kept.tensor("final_state"), kept.tensor("initial_state")), "");
}

TEST(Cases, C10_LongKeysWithoutNorm) {
  // The recurrence itself grows by beta |k|^2 a token. A partial chunk must add nothing to that.
  for (int64_t T : {1, 3}) expect_right({.T = T, .l2norm = false}, set_long_keys);
}

// ---- Tails and packed sequences ----

TEST(Cases, C11_FixedLengthTails) {
  for (int64_t T : {63, 500, 1000})
    for (const Case& c : {Case{.T = T}, bf16({.T = T})}) expect_right(c);
}

TEST(Cases, C12_GateTypesInTurn) {
  Case c = bf16({.T = 1500, .H = 1});
  c.gate_dtype = FLASH_KDA_F32;
  expect_right(c);
  c.gate_dtype = BF16;
  expect_right(c);
}

TEST(Cases, C13_WeakGateTail) { expect_right({.B = 2, .T = 75, .H = 4, .family = Family::kF3}); }

TEST(Cases, C14_NothingPastTheTensorsIsRead) {
  for (int64_t T : {1, 17, 30}) {
    const Case c{.B = 2, .T = T, .layout = Layout::kPadded};
    const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
    const flash_kda_tensor& q = p.tensor("q");
    ASSERT_TRUE(
        std::isnan(static_cast<const float*>(q.data)[offset_of(q, std::vector<int64_t>{1, T - 1, 1, 127}.data()) + 1]));
    expect_right(c);
  }
}

/// Each sequence of a packed batch against a call of its own, bit by bit.
void expect_each_as_if_alone(Case c) {
  c.batch_invariant = true;
  const Problem batch = solve(c), alone(c, kSeed, FLASH_KDA_BACKEND_CPU);
  int64_t begin = 0;
  for (int64_t n = 0; n < c.sequences(); begin += c.length(n++)) {
    flash_kda_forward_args args = alone.forward_args();
    using Args = flash_kda_forward_args;
    for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::beta, &Args::out})
      args.*member = part(args.*member, 1, begin, c.length(n));
    for (auto member : {&Args::initial_state, &Args::final_state}) args.*member = part(args.*member, 0, n, 1);
    args.cu_seqlens = {};
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  }
  EXPECT_EQ(bitwise_faults(batch, alone), "");
}

TEST(Cases, C15_SingleTokensAroundALongSequence) {
  const Case c{.lengths = {1, 1, 1, 700, 1, 16, 1}};
  expect_right(c);
  expect_each_as_if_alone(c);
}

TEST(Cases, C16_NeighboursWithEveryTail) {
  Case c = bf16({});
  for (int64_t tail = 1; tail <= 15; ++tail) c.lengths.push_back(tail % 2 == 0 ? tail : 16 + tail);
  expect_right(c);
  expect_each_as_if_alone(c);
}

TEST(Cases, C17_LastTokenInACallOfItsOwn) {
  for (int64_t T : {2, 17, 64, 100}) {
    const Case c{.T = T, .in_place = true};
    const Problem parts = prepare(c, FLASH_KDA_BACKEND_CPU, {});
    flash_kda_forward_args first = parts.forward_args();
    flash_kda_decode_args last = parts.decode_args();
    using Forward = flash_kda_forward_args;
    using Decode = flash_kda_decode_args;
    for (auto member : {&Forward::q, &Forward::k, &Forward::v, &Forward::g, &Forward::beta, &Forward::out})
      (first.*member).shape[1] = T - 1;
    for (auto member : {&Decode::q, &Decode::k, &Decode::v, &Decode::g, &Decode::beta, &Decode::out}) {
      flash_kda_tensor& t = last.*member;
      t.data = static_cast<float*>(t.data) + (T - 1) * t.strides[1];
      t.shape[1] = 1;
    }
    ASSERT_EQ(flash_kda_forward(&first), FLASH_KDA_OK) << flash_kda_last_error();
    ASSERT_EQ(flash_kda_decode(&last), FLASH_KDA_OK) << flash_kda_last_error();
    EXPECT_EQ(faults(parts, solve(c, FLASH_KDA_BACKEND_REFERENCE), fp32_tolerance(c)), "") << T;
  }
}

TEST(Cases, C18_EmptySequenceWithoutInitialState) {
  const Problem p = solve({.lengths = {5, 0, 20}, .initial = kNone, .final_dtype = BF16});
  for_each_element(p.tensor("final_state"), [&](const int64_t* at, int64_t) {
    const double element = get(p.tensor("final_state"), at);
    ASSERT_TRUE(at[0] == 1 ? element == 0 && !std::signbit(element) : std::isfinite(element));
  });
}

TEST(Cases, C19_NothingButEmptySequences) {
  for (int H : {1, 4})
    for (flash_kda_dtype dtype : {FLASH_KDA_F32, BF16})
      for (StateRows initial : {kNone, StateRows::kRows}) {
        const Problem p =
            solve({.H = H, .lengths = {0, 0, 0}, .initial = initial, .initial_dtype = dtype, .final_dtype = dtype});
        EXPECT_EQ(p.stray_writes(), "");
        for_each_element(p.tensor("final_state"), [&](const int64_t* at, int64_t) {
          ASSERT_EQ(get(p.tensor("final_state"), at), initial == kNone ? 0 : get(p.tensor("initial_state"), at));
        });
      }
}

TEST(Cases, C20_ManyEmptySequences) {
  Case c{.H = 1, .K = 16};
  c.lengths.assign(1000, 0);
  for (int64_t n : {333, 334, 667}) c.lengths[static_cast<size_t>(n)] = 20;
  expect_right(c);
  c.lengths.front() = c.lengths.back() = 3;
  expect_right(c);
}

TEST(Cases, C21_EmptyLastSequence) {
  for (int H : {1, 16}) expect_right({.H = H, .lengths = {64, 0}});
}

TEST(Cases, C22_ShortNeighbours) { expect_right({.H = 4, .lengths = {57, 2, 5}}); }

TEST(Cases, C23_LastRowBelongsToNobody) { expect_right({.lengths = {63}, .rows_after = 1}); }

TEST(Cases, C24_NaNBehindTheLastSequence) {
  const Case c{.lengths = {17, 30}, .rows_after = 17};
  const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
  for (const char* name : {"q", "k", "v", "g"}) ASSERT_TRUE(std::isnan(get(p.tensor(name), {0, 47, 0, 0}))) << name;
  ASSERT_TRUE(std::isnan(get(p.tensor("beta"), {0, 47, 0})));
  expect_right(c);
}

// ---- Indexing, layout, types ----

/// Address space in which only what was opened can be touched.
class Reserved {
 public:
  explicit Reserved(size_t bytes)
      : bytes_(bytes), begin_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(begin_, MAP_FAILED) << std::strerror(errno);
  }
  ~Reserved() { munmap(begin_, bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  void* open(size_t first, size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    char* at = static_cast<char*>(begin_) + first;
    const size_t before = reinterpret_cast<uintptr_t>(at) % page;
    EXPECT_EQ(mprotect(at - before, before + bytes, PROT_READ | PROT_WRITE), 0) << std::strerror(errno);
    return at;
  }
  void* begin() const { return begin_; }

 private:
  size_t bytes_;
  void* begin_;
};

/// A [1, T, ...] tensor `times` times behind itself: in address space, over one copy in memory. Equal rows of the
/// copies are one row, also when written.
class Repeated {
 public:
  Repeated(const flash_kda_tensor& once, int64_t times) : tensor_(once) {
    const auto bytes =
        static_cast<size_t>(once.shape[1] * once.strides[1] * size_of(static_cast<flash_kda_dtype>(once.dtype)));
    memory_ = std::make_unique<Reserved>(bytes * static_cast<size_t>(times));
    const int copy = memfd_create("repeated tensor", 0);
    EXPECT_EQ(ftruncate(copy, static_cast<off_t>(bytes)), 0) << std::strerror(errno);
    for (int64_t i = 0; i < times; ++i) {
      void* at = static_cast<char*>(memory_->begin()) + static_cast<size_t>(i) * bytes;
      EXPECT_EQ(mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, copy, 0), at) << std::strerror(errno);
    }
    close(copy);
    std::memcpy(memory_->begin(), once.data, bytes);
    tensor_.data = memory_->begin();
    tensor_.shape[1] *= times;
    tensor_.strides[0] *= times;
  }

  const flash_kda_tensor& tensor() const { return tensor_; }

 private:
  flash_kda_tensor tensor_;
  std::unique_ptr<Reserved> memory_;
};

/// 5 GB a tensor: every token tensor repeats after 960 tokens, which fill whole pages. An offset that wraps is off by a
/// power of two of tokens, no multiple of 960, and finds other rows. After half of the 960 nothing is left of what came
/// before (F2 decays by about 2^-70), so from there on the recurrence over the last 960 tokens alone has the right
/// rows.
TEST(Large, C25_600000Tokens) {
  constexpr int64_t kPeriod = 960, kTimes = 625;
  const Case c = bf16({.T = kPeriod, .H = 32, .family = Family::kF2, .initial = kNone});
  const Problem once(c, kSeed, FLASH_KDA_BACKEND_CPU), oracle = solve(c, FLASH_KDA_BACKEND_REFERENCE);
  flash_kda_forward_args args = once.forward_args();
  std::vector<std::unique_ptr<Repeated>> tensors;
  using Args = flash_kda_forward_args;
  for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::beta, &Args::out}) {
    tensors.push_back(std::make_unique<Repeated>(args.*member, kTimes));
    args.*member = tensors.back()->tensor();
  }
  ASSERT_EQ(args.q.shape[1], 600000);
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  const auto last_rows = [](const flash_kda_tensor& out) { return part(out, 1, kPeriod / 2, kPeriod / 2); };
  const Difference out =
      compare(last_rows(args.out), last_rows(once.tensor("out")), last_rows(oracle.tensor("out")), 2);
  EXPECT_TRUE(out.within(fp32_tolerance(c))) << to_string(out, 4);
  const Difference state = difference(once, oracle, "final_state");
  EXPECT_TRUE(state.within(fp32_tolerance(c))) << to_string(state, 4);
}

/// Every stride alone beyond 32 bits: twenty tokens that lie 2^28 elements apart and two heads that lie twenty such
/// steps apart, in fp32.
TEST(Cases, C25_OffsetsBeyond32Bits) {
  const Case c{.T = 20, .family = Family::kF2};
  const Problem compact = solve(c), inputs(c, kSeed, FLASH_KDA_BACKEND_CPU);
  constexpr int64_t kTokenStride = int64_t{1} << 28, kHeadStride = 20 * kTokenStride;
  flash_kda_forward_args args = inputs.forward_args();
  std::vector<std::unique_ptr<Reserved>> memory;
  using Args = flash_kda_forward_args;
  for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::beta, &Args::out}) {
    flash_kda_tensor far = args.*member;
    far.strides[1] = kTokenStride;
    far.strides[2] = kHeadStride;
    memory.push_back(std::make_unique<Reserved>(sizeof(float) * static_cast<size_t>(2 * kHeadStride)));
    far.data = memory.back()->begin();
    const size_t row = sizeof(float) * static_cast<size_t>(far.rank == 4 ? far.shape[3] : 1);
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t h = 0; h < c.H; ++h)
        memory.back()->open(sizeof(float) * static_cast<size_t>(t * kTokenStride + h * kHeadStride), row);
    for_each_element(far, [&](const int64_t* at, int64_t) { set(far, at, get(args.*member, at)); });
    args.*member = far;
  }
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_difference(args.out, compact.tensor("out")), "");
  EXPECT_EQ(bitwise_difference(args.final_state, compact.tensor("final_state")), "");
}

TEST(Cases, C26_LastSlotOfALargePaddedPool) {
  constexpr int64_t kSlot = 8191, kSlotStride = 540672;
  const Case c{.T = 20};
  const Problem compact = solve(c), inputs(c, kSeed, FLASH_KDA_BACKEND_CPU);
  const size_t row = sizeof(float) * 2 * 128 * 128;
  Reserved pool(sizeof(float) * static_cast<size_t>((kSlot + 1) * kSlotStride));
  void* slot = pool.open(sizeof(float) * static_cast<size_t>(kSlot * kSlotStride), row);
  std::memcpy(slot, inputs.tensor("initial_state").data, row);
  flash_kda_forward_args args = inputs.forward_args();
  args.initial_state.data = pool.begin();
  args.initial_state.shape[0] = kSlot + 1;
  args.initial_state.strides[0] = kSlotStride;
  args.final_state = args.initial_state;
  int32_t index = kSlot;
  args.read_index = {&index, FLASH_KDA_I32, 1, {1}, {1}};
  args.write_index = args.read_index;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_difference(args.out, compact.tensor("out")), "");
  EXPECT_EQ(std::memcmp(slot, compact.tensor("final_state").data, row), 0);
}

TEST(Cases, C27_EveryHeadUsesItsOwnGate) {
  expect_right({.T = 100, .H = 4},
               [](Problem& p) { assign(p, "g", [](const int64_t* at) { return at[2] == 0 ? 0.0 : -10.0; }); });
}

TEST(Cases, C28_TotalDecayOfAPartialChunk) {
  const Case c = total_decay_case({});
  EXPECT_EQ(total_decay_faults(solve(c, FLASH_KDA_BACKEND_CPU, set_total_decay_inputs),
                               solve(c, FLASH_KDA_BACKEND_REFERENCE, set_total_decay_inputs)),
            "");
}

TEST(Cases, C29_SlicesOfOneFusedBuffer) {
  for (const Case& c :
       {Case{.B = 2, .T = 100, .layout = Layout::kFused}, bf16({.B = 2, .T = 100, .layout = Layout::kFused})})
    expect_right(c);
}

TEST(Cases, C30_BetaWithALargeRowStride) {
  constexpr int64_t kT = 50, kStride = 6288;
  const Case c{.T = kT, .H = 12, .beta_dtype = BF16};
  const Problem plain = solve(c), inputs(c, kSeed, FLASH_KDA_BACKEND_CPU);
  flash_kda_forward_args args = inputs.forward_args();
  std::vector<uint16_t> rows(kT * kStride, 0xffff);
  flash_kda_tensor strided = args.beta;
  strided.data = rows.data() + 100;
  strided.strides[0] = kT * kStride;
  strided.strides[1] = kStride;
  for_each_element(strided, [&](const int64_t* at, int64_t) { set(strided, at, get(args.beta, at)); });
  args.beta = strided;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_faults(inputs, plain), "");
}

TEST(Cases, C31_StateIsValueByKey) {
  const Case c{.T = 30, .K = 64, .V = 64, .in_place = true};
  const Problem cpu = prepare(c, FLASH_KDA_BACKEND_CPU, {}), oracle = prepare(c, FLASH_KDA_BACKEND_REFERENCE, {});
  run(cpu);
  run(cpu);  // goes on from the state of the first call
  flash_kda_forward_args args = oracle.forward_args();
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  args.initial_state = args.final_state;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(faults(cpu, oracle, fp32_tolerance(c)), "");
}

TEST(Cases, C32_BiasOfEveryChannel) {
  for (bool flat : {false, true}) {
    const Case c{.T = 50, .family = Family::kF5, .flat_dt_bias = flat};
    expect_right(c);
    const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
    flash_kda_forward_args args = p.forward_args();
    args.dt_bias.rank = 1;
    args.dt_bias.shape[0] = 2;
    args.dt_bias.strides[0] = 1;
    EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_ERROR_VALUE);
    EXPECT_STREQ(flash_kda_last_error(), "dt_bias: got shape [2], accepted is [HV * K] = [256]");
    EXPECT_EQ(p.stray_writes(true), "");
  }
}

TEST(Cases, C33_Float16) {
  Case c{.T = 100};
  c.qkv = c.gate_dtype = c.beta_dtype = c.out = c.initial_dtype = c.final_dtype = FLASH_KDA_F16;
  expect_right(c);
}

TEST(Cases, C34_HeadDimension64) { expect_right({.T = 512, .H = 64, .K = 64}); }

TEST(Cases, C35_WideValuesAndAGateWithoutChannels) {
  const Case c{.B = 4, .T = 20, .H = 4};
  const auto expect_refused = [&](auto mutate, const char* message) {
    const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
    flash_kda_forward_args args = p.forward_args();
    mutate(args);
    EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_ERROR_VALUE);
    EXPECT_STREQ(flash_kda_last_error(), message);
    EXPECT_EQ(p.stray_writes(true), "");
  };
  expect_refused([](flash_kda_forward_args& a) { a.v.shape[3] = a.out.shape[3] = 512; },
                 "v: got V = 512, accepted is 1 to 256");
  expect_refused([](flash_kda_forward_args& a) { a.g.rank = 3; },
                 "g: got shape [4, 20, 4], accepted is [B, T, HV, K] = [4, 20, 4, 128]");
}

TEST(Cases, C36_GroupedValueHeads) { expect_right({.B = 4, .T = 256, .H = 16, .HV = 32}); }

// ---- Run time ----

TEST(Cases, C37_SecondCallLeavesTheFirstOutputAlone) {
  const Case c{.T = 100};
  Problem first = solve(c);
  first.take_snapshot();
  expect_right({.T = 130, .H = 3});
  EXPECT_EQ(first.stray_writes(true), "");
}

TEST(Cases, C38_InputsAreNotWritten) {
  for (Layout layout : {Layout::kPacked, Layout::kFused, Layout::kPadded}) {
    const Problem p = solve({.B = 2, .T = 75, .layout = layout});
    EXPECT_EQ(p.stray_writes(), "");
  }
}

TEST(Cases, C41_RepeatedSample) {
  const auto repeat_first = [](const Problem& p, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      const flash_kda_tensor t = p.tensor(name);
      assign(p, name, [&](const int64_t* at) {
        std::vector<int64_t> first(at, at + t.rank);
        first[0] = 0;
        return get(t, first.data());
      });
    }
  };
  for (bool batch_invariant : {true, false}) {
    const Case one{.B = 1, .T = 100, .H = 3, .batch_invariant = batch_invariant};
    Case eight = one;
    eight.B = 8;
    const Problem single = solve(one);
    const Problem batch = solve(eight, FLASH_KDA_BACKEND_CPU, [&](Problem& p) {
      repeat_first(p, {"q", "k", "v", "g", "beta", "initial_state"});
    });
    for (const char* name : {"out", "final_state"})
      for (int64_t b = 0; b < 8; ++b) {
        flash_kda_tensor row = batch.tensor(name);
        row.data = static_cast<float*>(row.data) + b * row.strides[0];
        row.shape[0] = 1;
        if (batch_invariant)
          EXPECT_EQ(bitwise_difference(row, single.tensor(name)), "") << name << ' ' << b;
        else
          EXPECT_LE(compare(row, row, single.tensor(name), 1).relative, fp32_tolerance(one)) << name << ' ' << b;
      }
  }
}

// ---- Building, using ----

/// Every build and machine lacks device 1000: what is missing is said, whether it is the build, the driver, a GPU or
/// that GPU.
TEST(Cases, C45_AskingForAGpuThatIsNotThere) {
  const Problem p(bf16({.T = 20}), kSeed, FLASH_KDA_BACKEND_CUDA);
  flash_kda_forward_args args = p.forward_args();
  args.device = 1000;
  EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_ERROR_DEVICE);
  const std::string message = flash_kda_last_error();
  EXPECT_EQ(message.rfind("device: got CUDA device 1000, but ", 0), 0U) << message;
  EXPECT_GT(message.size(), std::strlen("device: got CUDA device 1000, but ")) << message;
  EXPECT_EQ(p.stray_writes(true), "");
}

TEST(Cases, C46_TensorsOfAnotherConvention) {
  const Case c{.B = 2, .T = 20, .H = 4};
  const auto expect_refused = [&](auto mutate, flash_kda_status status, const char* message) {
    const Problem p(c, kSeed, FLASH_KDA_BACKEND_CPU);
    flash_kda_forward_args args = p.forward_args();
    mutate(args);
    EXPECT_EQ(flash_kda_forward(&args), status);
    EXPECT_STREQ(flash_kda_last_error(), message);
    EXPECT_EQ(p.stray_writes(true), "");
  };
  using Args = flash_kda_forward_args;
  const auto heads_first = [](flash_kda_tensor& t) {
    std::swap(t.shape[1], t.shape[2]);
    std::swap(t.strides[1], t.strides[2]);
  };
  expect_refused([&](Args& a) { heads_first(a.v); }, FLASH_KDA_ERROR_VALUE,
                 "v: got shape [2, 4, 20, 128], accepted is [B, T, HV, V] = [2, 20, HV, V]");
  // All of them: only the parameters of the heads can tell.
  expect_refused(
      [&](Args& a) {
        for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::beta, &Args::out}) heads_first(a.*member);
      },
      FLASH_KDA_ERROR_VALUE, "A_log: got shape [4], accepted is [HV] = [20]");
  expect_refused(
      [&](Args& a) {
        a.g = a.beta;
        heads_first(a.g);
      },
      FLASH_KDA_ERROR_VALUE, "g: got shape [2, 4, 20], accepted is [B, T, HV, K] = [2, 20, 4, 128]");
  expect_refused([](Args& a) { a.out = {}; }, FLASH_KDA_ERROR_TYPE, "out: required, but absent");
}

}  // namespace
}  // namespace flash_kda::test

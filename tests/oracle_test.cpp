// The fp64 recurrence itself: small cases computed by hand, and identities that hold for every size.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "api/params.h"
#include "support/compare.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

constexpr uint64_t kSeed = 7;
/// What fp64 sums in another order may differ by.
constexpr double kSummation = 1e-12;
/// For identities whose other side needs an input rounded to fp32.
constexpr double kInputRounding = 1e-6;

// ---- By hand ----

/// One head, log gate, probabilities, no norm: only the recurrence is left.
struct Small {
  int64_t T;
  int64_t K;
  int64_t V;
  float scale;
  std::vector<float> q, k, v, g, beta, state;
  bool l2norm = false;
  std::vector<double> out{}, final{};

  void run() {
    out.assign(static_cast<size_t>(T * V), 0);
    final.assign(static_cast<size_t>(V * K), 0);
    flash_kda_forward_args args;
    flash_kda_forward_args_init(&args);
    args.q = tensor(q, FLASH_KDA_F32, {1, T, 1, K});
    args.k = tensor(k, FLASH_KDA_F32, {1, T, 1, K});
    args.v = tensor(v, FLASH_KDA_F32, {1, T, 1, V});
    args.g = tensor(g, FLASH_KDA_F32, {1, T, 1, K});
    args.beta = tensor(beta, FLASH_KDA_F32, {1, T, 1});
    args.initial_state = tensor(state, FLASH_KDA_F32, {1, 1, V, K});
    args.final_state = tensor(final, FLASH_KDA_F64, {1, 1, V, K});
    args.out = tensor(out, FLASH_KDA_F64, {1, T, 1, V});
    args.scale = scale;
    args.gate = FLASH_KDA_GATE_LOG;
    args.beta_form = FLASH_KDA_BETA_PROBABILITIES;
    args.l2norm = l2norm ? 1 : 0;
    args.backend = FLASH_KDA_BACKEND_REFERENCE;
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  }

 private:
  template <typename T_>
  static flash_kda_tensor tensor(std::vector<T_>& values, flash_kda_dtype dtype, std::initializer_list<int64_t> shape) {
    flash_kda_tensor t{};
    t.data = values.data();
    t.dtype = dtype;
    t.rank = static_cast<int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    int64_t step = 1;
    for (int d = t.rank - 1; d >= 0; step *= t.shape[d--]) t.strides[d] = step;
    return t;
  }
};

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << "element " << i;
}

/// The log-gate of a decay of one half.
const float kHalf = -std::log(2.0F);

TEST(OracleByHand, OneByOneThreeTokens) {
  Small s{.T = 3,
          .K = 1,
          .V = 1,
          .scale = 1,
          .q = {1, 3, 2},
          .k = {1, 2, -1},
          .v = {3, 1, 2},
          .g = {kHalf, kHalf, kHalf},
          .beta = {0.5F, 0.25F, 1},
          .state = {2}};
  s.run();
  // t0: S = 2/2 = 1;      u = 0.5 (3 - 1*1) = 1;         S = 1 + 1*1 = 2;           o = 2*1 = 2
  // t1: S = 2/2 = 1;      u = 0.25 (1 - 1*2) = -0.25;    S = 1 - 0.25*2 = 0.5;      o = 0.5*3 = 1.5
  // t2: S = 0.5/2 = 0.25; u = 1 (2 - 0.25*-1) = 2.25;    S = 0.25 + 2.25*-1 = -2;   o = -2*2 = -4
  expect_near(s.out, {2, 1.5, -4});
  expect_near(s.final, {-2});
}

TEST(OracleByHand, TwoByTwoTwoTokens) {
  Small s{.T = 2,
          .K = 2,
          .V = 2,
          .scale = 0.5F,
          .q = {1, 2, 2, -1},
          .k = {1, 0, 1, 1},
          .v = {2, 1, 1.75F, 5},
          .g = {0, kHalf, kHalf, 0},
          .beta = {0.5F, 1},
          .state = {1, 2, 3, 4}};
  s.run();
  // t0: the second column halves: S = [1 1; 3 2];   S k = (1, 3);  u = 0.5 ((2, 1) - (1, 3)) = (0.5, -1);
  //     S = [1.5 1; 2 2];  S q = (3.5, 6);  o = (1.75, 3)
  // t1: the first column halves: S = [0.75 1; 1 2]; S k = (1.75, 3);  u = (1.75, 5) - (1.75, 3) = (0, 2);
  //     S = [0.75 1; 3 4];  S q = (0.5, 2);  o = (0.25, 1)
  expect_near(s.out, {1.75, 3, 0.25, 1});
  expect_near(s.final, {0.75, 1, 3, 4});
}

TEST(OracleByHand, OneRowTwoColumns) {
  Small s{.T = 1,
          .K = 2,
          .V = 1,
          .scale = 1,
          .q = {1, -1},
          .k = {1, 1},
          .v = {5},
          .g = {0, 0},
          .beta = {0.5F},
          .state = {1, 2}};
  s.run();
  // S k = 3;  u = 0.5 (5 - 3) = 1;  S = [1 2] + 1 [1 1] = [2 3];  o = 2 - 3
  expect_near(s.out, {-1});
  expect_near(s.final, {2, 3});
}

TEST(OracleByHand, TwoRowsOneColumn) {
  Small s{
      .T = 1, .K = 1, .V = 2, .scale = 1, .q = {2}, .k = {2}, .v = {3, 1}, .g = {kHalf}, .beta = {1}, .state = {1, 2}};
  s.run();
  // S = (0.5, 1);  S k = (1, 2);  u = (2, -1);  S = (0.5 + 4, 1 - 2) = (4.5, -1);  o = (9, -2)
  expect_near(s.out, {9, -2});
  expect_near(s.final, {4.5, -1});
}

// ---- Gate, beta and norm by hand ----

/// What one token with beta = 0 leaves of a state of 1: the decay itself.
double decay_of(flash_kda_gate gate, float g, const std::vector<float>& A_log, const std::vector<float>& dt_bias,
                float lower_bound = -5.0F) {
  float zero = 0, one = 1, mutable_g = g;
  double final = 0, out = 0;
  std::vector<float> A = A_log, bias = dt_bias;
  flash_kda_forward_args args;
  flash_kda_forward_args_init(&args);
  const auto scalar = [](void* data, flash_kda_dtype dtype, int rank) {
    return flash_kda_tensor{data, dtype, rank, {1, 1, 1, 1}, {1, 1, 1, 1}};
  };
  args.q = args.k = scalar(&one, FLASH_KDA_F32, 4);
  args.v = scalar(&zero, FLASH_KDA_F32, 4);
  args.g = scalar(&mutable_g, FLASH_KDA_F32, 4);
  args.beta = scalar(&zero, FLASH_KDA_F32, 3);
  args.initial_state = scalar(&one, FLASH_KDA_F32, 4);
  args.final_state = scalar(&final, FLASH_KDA_F64, 4);
  args.out = scalar(&out, FLASH_KDA_F64, 4);
  if (!A.empty()) args.A_log = scalar(A.data(), FLASH_KDA_F32, 1);
  if (!bias.empty()) args.dt_bias = scalar(bias.data(), FLASH_KDA_F32, 2);
  args.gate = gate;
  args.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  args.lower_bound = lower_bound;
  args.backend = FLASH_KDA_BACKEND_REFERENCE;
  EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  return final;
}

TEST(OracleByHand, BoundedGate) {
  // gamma = -5 sigmoid(0) = -2.5
  EXPECT_NEAR(decay_of(FLASH_KDA_GATE_BOUNDED, 0, {}, {}), std::exp(-2.5), 1e-15);
  // exp(A_log) = 2, g + dt_bias = -ln 3 / 2: gamma = -4 sigmoid(-ln 3) = -4 / (1 + 3) = -1
  EXPECT_NEAR(decay_of(FLASH_KDA_GATE_BOUNDED, -1, {std::log(2.0F)}, {1 - std::log(3.0F) / 2}, -4), std::exp(-1), 1e-7);
}

TEST(OracleByHand, SoftplusGate) {
  // gamma = -ln(1 + e^0) = -ln 2
  EXPECT_NEAR(decay_of(FLASH_KDA_GATE_SOFTPLUS, 0, {}, {}), 0.5, 1e-15);
  // exp(A_log) = 3, g + dt_bias = 0: gamma = -3 ln 2
  EXPECT_NEAR(decay_of(FLASH_KDA_GATE_SOFTPLUS, 1, {std::log(3.0F)}, {-1}), 0.125, 1e-7);
  // softplus(-30) = e^-30 to 1e-13 relative, which 1 + e^-30 would lose
  EXPECT_NEAR(-std::log(decay_of(FLASH_KDA_GATE_SOFTPLUS, -30, {std::log(1e6F)}, {})) / (1e6 * std::exp(-30)), 1, 2e-6);
  // softplus(1000) = 1000: no overflow, and nothing is left
  EXPECT_EQ(decay_of(FLASH_KDA_GATE_SOFTPLUS, 1000, {}, {}), 0);
}

TEST(OracleByHand, LogGate) { EXPECT_NEAR(decay_of(FLASH_KDA_GATE_LOG, -1.5F, {}, {}), std::exp(-1.5), 1e-15); }

TEST(OracleByHand, BetaForms) {
  // K = V = 1, S = 0, k = 1, v = 4, scale q = 1: o = beta v
  const auto output = [](flash_kda_beta form, float beta) {
    float zero = 0, one = 1, four = 4, mutable_beta = beta;
    double out = 0;
    flash_kda_forward_args args;
    flash_kda_forward_args_init(&args);
    const auto scalar = [](void* data, flash_kda_dtype dtype, int rank) {
      return flash_kda_tensor{data, dtype, rank, {1, 1, 1, 1}, {1, 1, 1, 1}};
    };
    args.q = args.k = scalar(&one, FLASH_KDA_F32, 4);
    args.v = scalar(&four, FLASH_KDA_F32, 4);
    args.g = scalar(&zero, FLASH_KDA_F32, 4);
    args.beta = scalar(&mutable_beta, FLASH_KDA_F32, 3);
    args.out = scalar(&out, FLASH_KDA_F64, 4);
    args.beta_form = form;
    args.l2norm = 0;
    args.backend = FLASH_KDA_BACKEND_REFERENCE;
    EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    return out;
  };
  EXPECT_EQ(output(FLASH_KDA_BETA_LOGITS, 0), 2);                       // sigmoid(0) = 1/2
  EXPECT_NEAR(output(FLASH_KDA_BETA_LOGITS, std::log(3.0F)), 3, 1e-7);  // sigmoid(ln 3) = 3/4
  EXPECT_EQ(output(FLASH_KDA_BETA_PROBABILITIES, 0.25F), 1);
  EXPECT_EQ(output(FLASH_KDA_BETA_TWICE_SIGMOID, 0), 4);
  EXPECT_NEAR(output(FLASH_KDA_BETA_TWICE_SIGMOID, std::log(3.0F)), 6, 1e-7);
}

TEST(OracleByHand, NormAndDefaultScale) {
  // S = [1 0; 0 1] stays (beta = 0, no decay): o = q / sqrt(|q|^2 + 1e-6) / sqrt(2), q = (3, 4)
  Small s{.T = 1,
          .K = 2,
          .V = 2,
          .scale = FLASH_KDA_DEFAULT_SCALE,
          .q = {3, 4},
          .k = {1, 0},
          .v = {0, 0},
          .g = {0, 0},
          .beta = {0},
          .state = {1, 0, 0, 1},
          .l2norm = true};
  s.run();
  const double norm = std::sqrt(25 + 1e-6) * std::sqrt(2.0);
  expect_near(s.out, {3 / norm, 4 / norm});
  // The epsilon shows for short rows: q = (1e-3, 0) becomes 1e-3 / sqrt(2e-6) = 0.7071
  s.q = {1e-3F, 0};
  s.run();
  expect_near(s.out, {0.5, 0});
}

// ---- Identities ----

/// A case on the reference backend with fp64 outputs, not yet run.
Problem prepare(const Case& c) { return Problem(oracle_case(c), kSeed, FLASH_KDA_BACKEND_REFERENCE); }

void run(Problem& problem) {
  problem.take_snapshot();
  const flash_kda_forward_args args = problem.forward_args();
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(problem.stray_writes(), "");
}

Problem solve(const Case& c) {
  Problem problem = prepare(c);
  run(problem);
  return problem;
}

/// Every element of `to` <- fn(its coordinates).
template <typename Function>
void assign(const flash_kda_tensor& to, Function fn) {
  for_each_element(to, [&](const int64_t* at, int64_t) { set(to, at, fn(at)); });
}

/// `to` <- `from`, where the index in `dimension` is source(index).
template <typename Function>
void gather(const flash_kda_tensor& to, const flash_kda_tensor& from, int dimension, Function source) {
  assign(to, [&](const int64_t* at) {
    int64_t other[FLASH_KDA_MAX_RANK] = {};
    std::copy(at, at + to.rank, other);
    other[dimension] = source(at[dimension]);
    return get(from, other);
  });
}

/// Tokens [begin, end) of dimension 1.
flash_kda_tensor slice(flash_kda_tensor t, int64_t begin, int64_t end) {
  t.data = static_cast<char*>(t.data) + begin * t.strides[1] * size_of(static_cast<flash_kda_dtype>(t.dtype));
  t.shape[1] = end - begin;
  return t;
}

const std::vector<std::string> kTokenInputs{"q", "k", "v", "g", "beta"};
const std::vector<std::string> kOutputs{"out", "final_state"};

struct Dimensions {
  int K;
  int V;
};
std::string name_of_dimensions(const testing::TestParamInfo<Dimensions>& info) {
  return fmt::format("K{}V{}", info.param.K, info.param.V);
}

class Oracle : public testing::TestWithParam<Dimensions> {
 protected:
  /// Twelve tokens, two heads.
  Case plain() const { return {.T = 12, .K = GetParam().K, .V = GetParam().V}; }
};
INSTANTIATE_TEST_SUITE_P(Dimensions, Oracle,
                         testing::Values(Dimensions{1, 1}, Dimensions{1, 60}, Dimensions{60, 1}, Dimensions{60, 100},
                                         Dimensions{100, 60}, Dimensions{128, 128}, Dimensions{128, 256},
                                         Dimensions{256, 128}),
                         name_of_dimensions);

TEST_P(Oracle, LogGateZeroIsThePlainDeltaRule) {
  Case c = plain();
  c.family = Family::kNoDecay;
  c.gate = FLASH_KDA_GATE_LOG;
  c.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  c.l2norm = false;
  c.scale = 1;
  const Problem p = solve(c);
  Problem expected = prepare(c);
  const flash_kda_tensor &q = p.tensor("q"), &k = p.tensor("k"), &v = p.tensor("v"), &beta = p.tensor("beta");
  for (int h = 0; h < c.H; ++h)
    for (int i = 0; i < c.value_dim(); ++i) {
      std::vector<double> row(static_cast<size_t>(c.K));
      const auto dot = [&](const flash_kda_tensor& x, int64_t t) {
        double sum = 0;
        for (int d = 0; d < c.K; ++d) sum += row[static_cast<size_t>(d)] * get(x, {0, t, h, d});
        return sum;
      };
      for (int d = 0; d < c.K; ++d) row[static_cast<size_t>(d)] = get(p.tensor("initial_state"), {0, h, i, d});
      for (int t = 0; t < c.T; ++t) {
        const double u = get(beta, {0, t, h}) * (get(v, {0, t, h, i}) - dot(k, t));
        for (int d = 0; d < c.K; ++d) row[static_cast<size_t>(d)] += u * get(k, {0, t, h, d});
        set(expected.tensor("out"), {0, t, h, i}, dot(q, t));
      }
      for (int d = 0; d < c.K; ++d) set(expected.tensor("final_state"), {0, h, i, d}, row[static_cast<size_t>(d)]);
    }
  EXPECT_EQ(faults(p, expected, kSummation), "");
}

TEST_P(Oracle, BetaZeroIsPureDecay) {
  Case c = plain();
  c.gate = FLASH_KDA_GATE_LOG;
  c.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  c.l2norm = false;
  c.scale = 3;
  Problem p = prepare(c);
  assign(p.tensor("beta"), [](const int64_t*) { return 0.0; });
  run(p);
  Problem expected = prepare(c);
  for (int h = 0; h < c.H; ++h)
    for (int i = 0; i < c.value_dim(); ++i) {
      std::vector<double> gamma(static_cast<size_t>(c.K));
      const auto decayed = [&](int d) {
        return get(p.tensor("initial_state"), {0, h, i, d}) * std::exp(gamma[static_cast<size_t>(d)]);
      };
      for (int t = 0; t < c.T; ++t) {
        double o = 0;
        for (int d = 0; d < c.K; ++d) {
          gamma[static_cast<size_t>(d)] += get(p.tensor("g"), {0, t, h, d});
          o += decayed(d) * get(p.tensor("q"), {0, t, h, d});
        }
        set(expected.tensor("out"), {0, t, h, i}, 3 * o);
      }
      for (int d = 0; d < c.K; ++d) set(expected.tensor("final_state"), {0, h, i, d}, decayed(d));
    }
  EXPECT_EQ(faults(p, expected, kSummation), "");
}

TEST_P(Oracle, SplittingAtEveryPointChangesNothing) {
  const Case c = plain();
  const Problem whole = solve(c);
  for (int64_t split = 0; split <= c.T; ++split) {
    const Problem parts = prepare(c);
    flash_kda_forward_args first = parts.forward_args(), second = first;
    for (auto member : {&flash_kda_forward_args::q, &flash_kda_forward_args::k, &flash_kda_forward_args::v,
                        &flash_kda_forward_args::g, &flash_kda_forward_args::beta, &flash_kda_forward_args::out}) {
      first.*member = slice(first.*member, 0, split);
      second.*member = slice(second.*member, split, c.T);
    }
    second.initial_state = second.final_state;
    ASSERT_EQ(flash_kda_forward(&first), FLASH_KDA_OK) << flash_kda_last_error();
    ASSERT_EQ(flash_kda_forward(&second), FLASH_KDA_OK) << flash_kda_last_error();
    EXPECT_EQ(bitwise_faults(parts, whole), "") << "split at " << split;
  }
}

/// The chunked form of docs/operator.md, section 3, with `chunk` tokens at a time, on top of the outputs of `p`: log
/// gate, probabilities, norm. One anchor at the start of a chunk is enough in fp64, as long as its decay stays above
/// 2^-1022.
void run_chunked(const Problem& p, int64_t chunk) {
  const Case& c = p.shape();
  const auto K = static_cast<size_t>(c.K), V = static_cast<size_t>(c.value_dim());
  using Rows = std::vector<std::vector<double>>;
  const auto dot = [](const std::vector<double>& x, const std::vector<double>& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  for (int64_t h = 0; h < c.H; ++h) {
    const auto row = [&](const char* name, int64_t t, size_t extent) {
      std::vector<double> x(extent);
      for (size_t d = 0; d < extent; ++d) x[d] = get(p.tensor(name), {0, t, h, static_cast<int64_t>(d)});
      return x;
    };
    const auto normalised = [&](const char* name, int64_t t) {
      std::vector<double> x = row(name, t, K);
      const double norm = std::sqrt(dot(x, x) + 1e-6);
      for (double& element : x) element /= norm;
      return x;
    };
    Rows S(V, std::vector<double>(K));
    for (size_t i = 0; i < V; ++i)
      for (size_t d = 0; d < K; ++d)
        S[i][d] = get(p.tensor("initial_state"), {0, h, static_cast<int64_t>(i), static_cast<int64_t>(d)});
    for (int64_t first = 0; first < c.T; first += chunk) {
      const auto rows = static_cast<size_t>(std::min(chunk, c.T - first));
      Rows q_decayed, k_decayed, k_grown, k_end, v, U(rows, std::vector<double>(V));
      std::vector<double> G(K), beta;
      for (size_t i = 0; i < rows; ++i) {
        const int64_t t = first + static_cast<int64_t>(i);
        const std::vector<double> gamma = row("g", t, K);
        q_decayed.push_back(normalised("q", t));
        k_decayed.push_back(normalised("k", t));
        k_grown.push_back(k_decayed.back());
        for (size_t d = 0; d < K; ++d) {
          G[d] += gamma[d] * std::numbers::log2e;
          q_decayed[i][d] *= static_cast<double>(c.scale) * std::exp2(G[d]);
          k_decayed[i][d] *= std::exp2(G[d]);
          k_grown[i][d] *= std::exp2(-G[d]);
        }
        v.push_back(row("v", t, V));
        beta.push_back(get(p.tensor("beta"), {0, t, h}));
      }
      for (const std::vector<double>& k : k_grown) {
        k_end.push_back(k);
        for (size_t d = 0; d < K; ++d) k_end.back()[d] *= std::exp2(G[d]);
      }
      for (size_t i = 0; i < rows; ++i) {
        std::vector<double> A(i), P(i + 1);
        for (size_t j = 0; j < i; ++j) A[j] = beta[i] * dot(k_decayed[i], k_grown[j]);
        for (size_t j = 0; j <= i; ++j) P[j] = dot(q_decayed[i], k_grown[j]);
        for (size_t n = 0; n < V; ++n) {
          U[i][n] = beta[i] * (v[i][n] - dot(k_decayed[i], S[n]));
          double o = dot(q_decayed[i], S[n]);
          for (size_t j = 0; j < i; ++j) U[i][n] -= A[j] * U[j][n];  // (I + A)^-1
          for (size_t j = 0; j <= i; ++j) o += P[j] * U[j][n];
          set(p.tensor("out"), {0, first + static_cast<int64_t>(i), h, static_cast<int64_t>(n)}, o);
        }
      }
      for (size_t n = 0; n < V; ++n)
        for (size_t d = 0; d < K; ++d) {
          S[n][d] *= std::exp2(G[d]);
          for (size_t j = 0; j < rows; ++j) S[n][d] += U[j][n] * k_end[j][d];
        }
    }
    for (size_t i = 0; i < V; ++i)
      for (size_t d = 0; d < K; ++d)
        set(p.tensor("final_state"), {0, h, static_cast<int64_t>(i), static_cast<int64_t>(d)}, S[i][d]);
  }
}

TEST_P(Oracle, ChunkSizeDoesNotMatter) {
  Case c = plain();
  c.T = 100;  // a multiple of neither 16, 32 nor 64
  c.gate = FLASH_KDA_GATE_LOG;
  c.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  c.scale = 0.5F;
  for (Family family : {Family::kF1, Family::kF3}) {
    c.family = family;
    const Problem recurrence = solve(c);
    for (int64_t chunk : {1, 4, 16, 32, 64}) {
      const Problem chunked = prepare(c);
      run_chunked(chunked, chunk);
      EXPECT_EQ(faults(chunked, recurrence, kSummation), "") << c << " chunk " << chunk;
    }
  }
}

TEST_P(Oracle, GroupedValueHeadsAreRepeatedQueriesAndKeys) {
  Case grouped = plain(), repeated = plain();
  grouped.HV = 6;
  repeated.H = repeated.HV = 6;
  const Problem p = solve(grouped);
  Problem expected = prepare(repeated);
  for (const char* name : {"q", "k"}) gather(expected.tensor(name), p.tensor(name), 2, [](int64_t h) { return h / 3; });
  run(expected);
  EXPECT_EQ(bitwise_faults(p, expected), "");
}

TEST_P(Oracle, PermutedHeadsGivePermutedResults) {
  Case c = plain();
  c.H = 3;
  const auto next = [](int64_t h) { return (h + 1) % 3; };
  const Problem p = solve(c);
  Problem permuted = prepare(c);
  for (const std::string& name : kTokenInputs) gather(permuted.tensor(name), p.tensor(name), 2, next);
  for (const char* name : {"A_log", "dt_bias"}) gather(permuted.tensor(name), p.tensor(name), 0, next);
  gather(permuted.tensor("initial_state"), p.tensor("initial_state"), 1, next);
  run(permuted);
  Problem expected = prepare(c);
  gather(expected.tensor("out"), p.tensor("out"), 2, next);
  gather(expected.tensor("final_state"), p.tensor("final_state"), 1, next);
  EXPECT_EQ(bitwise_faults(permuted, expected), "");
}

TEST_P(Oracle, ValueColumnsAreIndependent) {
  const Case c = plain();
  const Problem p = solve(c);
  Problem changed = prepare(c);
  const int64_t column = c.value_dim() / 2;
  for (int64_t t = 0; t < c.T; ++t) set(changed.tensor("v"), {0, t, 1, column}, 100);
  run(changed);
  int64_t differing = 0;
  const auto count = [&](const char* name, auto affected) {
    for_each_element(p.tensor(name), [&](const int64_t* at, int64_t) {
      const bool differs = get(p.tensor(name), at) != get(changed.tensor(name), at);
      EXPECT_TRUE(affected(at) || !differs) << name;
      differing += differs;
    });
  };
  count("out", [&](const int64_t* at) { return at[2] == 1 && at[3] == column; });
  count("final_state", [&](const int64_t* at) { return at[1] == 1 && at[2] == column; });
  EXPECT_EQ(differing, c.T + c.K);
}

TEST_P(Oracle, LinearInValuesAndInitialState) {
  const Case c = plain();
  const Problem both = solve(c);
  Problem values = prepare(c), state = prepare(c), expected = prepare(c);
  assign(values.tensor("initial_state"), [](const int64_t*) { return 0.0; });
  assign(state.tensor("v"), [](const int64_t*) { return 0.0; });
  run(values);
  run(state);
  for (const std::string& name : kOutputs)
    assign(expected.tensor(name),
           [&](const int64_t* at) { return get(values.tensor(name), at) + get(state.tensor(name), at); });
  EXPECT_EQ(faults(both, expected, kSummation), "");

  Problem doubled = prepare(c);
  for (const char* name : {"v", "initial_state"})
    assign(doubled.tensor(name), [&](const int64_t* at) { return 2 * get(both.tensor(name), at); });
  run(doubled);
  for (const std::string& name : kOutputs)
    assign(expected.tensor(name), [&](const int64_t* at) { return 2 * get(both.tensor(name), at); });
  EXPECT_EQ(bitwise_faults(doubled, expected), "");
}

TEST_P(Oracle, TwiceSigmoidIsTwiceTheProbability) {
  Case twice = plain(), probabilities = plain();
  twice.beta_form = FLASH_KDA_BETA_TWICE_SIGMOID;
  probabilities.beta_form = FLASH_KDA_BETA_PROBABILITIES;
  const Problem p = solve(twice);
  Problem expected = prepare(probabilities);
  assign(expected.tensor("beta"), [&](const int64_t* at) { return 2 / (1 + std::exp(-get(p.tensor("beta"), at))); });
  run(expected);
  EXPECT_EQ(faults(p, expected, kInputRounding), "");
}

TEST_P(Oracle, NormIsThatOfNormalisedInputs) {
  Case with = plain(), without = plain();
  without.l2norm = false;
  const Problem p = solve(with);
  Problem expected = prepare(without);
  for (const char* name : {"q", "k"})
    assign(expected.tensor(name), [&](const int64_t* at) {
      double sum = 1e-6;
      for (int64_t d = 0; d < with.K; ++d) sum += std::pow(get(p.tensor(name), {at[0], at[1], at[2], d}), 2);
      return get(p.tensor(name), at) / std::sqrt(sum);
    });
  run(expected);
  EXPECT_EQ(faults(p, expected, kInputRounding), "");
}

TEST_P(Oracle, OutputIsLinearInScaleAndTheStateKnowsNothingOfIt) {
  Case one = plain(), four = plain();
  one.scale = 0.5F;
  four.scale = -2;
  const Problem p = solve(one);
  Problem expected = prepare(four);
  assign(expected.tensor("out"), [&](const int64_t* at) { return -4 * get(p.tensor("out"), at); });
  gather(expected.tensor("final_state"), p.tensor("final_state"), 0, [](int64_t n) { return n; });
  EXPECT_EQ(bitwise_faults(solve(four), expected), "");
}

TEST_P(Oracle, LogGateIsTheActivatedGate) {
  for (flash_kda_gate gate : {FLASH_KDA_GATE_BOUNDED, FLASH_KDA_GATE_SOFTPLUS}) {
    Case raw = plain(), activated = plain();
    raw.gate = gate;
    activated.gate = FLASH_KDA_GATE_LOG;
    const Problem p = solve(raw);
    Problem expected = prepare(activated);
    assign(expected.tensor("g"), [&](const int64_t* at) {
      const double factor = std::exp(get(p.tensor("A_log"), {at[2]}));
      const double x = get(p.tensor("g"), at) + get(p.tensor("dt_bias"), {at[2], at[3]});
      return gate == FLASH_KDA_GATE_BOUNDED ? -5 / (1 + std::exp(-factor * x)) : -factor * std::log1p(std::exp(x));
    });
    run(expected);
    EXPECT_EQ(faults(p, expected, kInputRounding), "");
  }
}

TEST_P(Oracle, PackedSequencesAreEachAsIfAlone) {
  Case c = plain();
  c.lengths = {0, 3, 0, 0, 5, 1, 4, 0};
  c.rows_after = 2;
  c.wide_cu_seqlens = true;
  const Problem p = solve(c);
  const Problem alone = prepare(c);
  int64_t begin = 0;
  for (int64_t n = 0; n < c.sequences(); ++n) {
    flash_kda_forward_args args = alone.forward_args();
    for (auto member : {&flash_kda_forward_args::q, &flash_kda_forward_args::k, &flash_kda_forward_args::v,
                        &flash_kda_forward_args::g, &flash_kda_forward_args::beta, &flash_kda_forward_args::out})
      args.*member = slice(args.*member, begin, begin + c.length(n));
    for (auto member : {&flash_kda_forward_args::initial_state, &flash_kda_forward_args::final_state}) {
      flash_kda_tensor& state = args.*member;
      state.data =
          static_cast<char*>(state.data) + n * state.strides[0] * size_of(static_cast<flash_kda_dtype>(state.dtype));
      state.shape[0] = 1;
    }
    args.cu_seqlens = {};
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    begin += c.length(n);
  }
  EXPECT_EQ(bitwise_faults(p, alone), "");
}

TEST_P(Oracle, EmptySequencesKeepTheirState) {
  Case c = plain();
  c.lengths = {0, 3, 0};
  const Problem p = solve(c);
  for_each_element(p.tensor("final_state"), [&](const int64_t* at, int64_t) {
    const bool empty = at[0] != 1;
    EXPECT_TRUE(!empty || get(p.tensor("final_state"), at) == get(p.tensor("initial_state"), at));
  });
  c.initial = StateRows::kAbsent;
  const Problem without = solve(c);
  for_each_element(without.tensor("final_state"), [&](const int64_t* at, int64_t) {
    const bool empty = at[0] != 1;
    EXPECT_TRUE(!empty || get(without.tensor("final_state"), at) == 0);
  });
}

TEST_P(Oracle, PoolSlotsAreRowsByAnotherName) {
  Case rows = plain(), pool = plain();
  rows.lengths = pool.lengths = {2, 1, 3, 1, 2, 1, 2, 1, 1};  // all seven kinds of slots_of, and two again
  pool.initial = pool.final = StateRows::kPool;
  for (bool flags : {false, true}) {
    pool.flags = flags;
    const Problem p = solve(pool);
    Problem r = prepare(rows);
    const flash_kda_tensor &cu = p.tensor("cu_seqlens"), &state = p.tensor("final_state");
    for (int64_t n = 0; n < rows.sequences(); ++n) {
      const SlotPair slots = slots_of(pool, n);
      const bool zero = slots.read < 0 || slots.read >= state.shape[0] || (flags && n % 3 == 1);
      for_each_element(r.tensor("initial_state"), [&](const int64_t* at, int64_t) {
        if (at[0] == n)
          set(r.tensor("initial_state"), at,
              zero ? 0 : get(p.tensor("initial_state"), {slots.read, at[1], at[2], at[3]}));
      });
    }
    run(r);
    // Rebuild the pool's results from the rows'.
    const Problem expected = prepare(pool);
    for_each_element(expected.tensor("out"), [&](const int64_t* at, int64_t) {
      const auto* begin = static_cast<const int32_t*>(cu.data);
      const int64_t n = std::upper_bound(begin, begin + pool.sequences() + 1, static_cast<int32_t>(at[1])) - begin - 1;
      set(expected.tensor("out"), at, is_padded_row(pool, n) ? 0 : get(r.tensor("out"), at));
    });
    for (int64_t n = 0; n < rows.sequences(); ++n) {
      const int64_t slot = slots_of(pool, n).write;
      for_each_element(r.tensor("final_state"), [&](const int64_t* at, int64_t) {
        if (at[0] == n && slot >= 0 && slot < state.shape[0])
          set(expected.tensor("final_state"), {slot, at[1], at[2], at[3]}, get(r.tensor("final_state"), at));
      });
    }
    EXPECT_EQ(bitwise_faults(p, expected), "") << "flags " << flags;
  }
}

TEST_P(Oracle, CheckpointsAreTheStatesOfShorterCalls) {
  Case c = plain();
  c.T = 140;
  c.H = 1;
  c.checkpoints = {{0, 64}, {0, 0}, {0, 128}, {0, 192}};
  const Problem p = solve(c);
  c.checkpoint_pool = true;
  const Problem pool = solve(c);
  for (int64_t m = 0; m < 4; ++m) {
    Case shorter = c;
    shorter.T = c.checkpoints[static_cast<size_t>(m)].second;
    shorter.checkpoints.clear();
    const bool past = shorter.T > 140;
    const Problem s = solve(shorter);
    for_each_element(s.tensor("final_state"), [&](const int64_t* at, int64_t) {
      const double row = get(p.tensor("checkpoint_state"), {m, at[1], at[2], at[3]});
      const double slot = get(pool.tensor("checkpoint_state"), {2 * (3 - m) + 1, at[1], at[2], at[3]});
      if (past) {
        EXPECT_TRUE(std::isnan(row) && std::isnan(slot));  // as poisoned as it was
      } else {
        EXPECT_EQ(row, get(s.tensor("final_state"), at));
        EXPECT_EQ(slot, row);
      }
    });
  }
}

TEST_P(Oracle, LayoutsAndControlTypesChangeNothing) {
  Case c = plain();
  c.lengths = {3, 0, 9};
  const Problem p = solve(c);
  for (Layout layout : {Layout::kFused, Layout::kPadded}) {
    c.layout = layout;
    c.wide_cu_seqlens = c.flat_dt_bias = layout == Layout::kFused;
    EXPECT_EQ(bitwise_faults(solve(c), p), "");
  }
}

TEST_P(Oracle, OutputsAreRoundedOnce) {
  const Case c = plain();
  const Problem wide = solve(c);
  for (flash_kda_dtype dtype : {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16}) {
    Case narrow = c;
    narrow.out = narrow.final_dtype = dtype;
    Problem p(narrow, kSeed, FLASH_KDA_BACKEND_REFERENCE);
    run(p);
    EXPECT_EQ(faults(p, wide, 0x1p-24), "");  // of fp32, which every narrower type is rounded from
  }
}

}  // namespace
}  // namespace flash_kda::test

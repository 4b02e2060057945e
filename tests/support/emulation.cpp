#include "support/emulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "api/validate.h"
#include "common/float_types.h"
#include "common/sequence.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

constexpr int kBlock = 16;  // rows that share one anchor

struct Matrix {
  Matrix(int rows_, int columns_) : rows(rows_), columns(columns_), x(static_cast<size_t>(rows_) * columns_) {}
  double& operator()(int i, int j) { return x[static_cast<size_t>(i) * columns + j]; }
  double operator()(int i, int j) const { return x[static_cast<size_t>(i) * columns + j]; }

  int rows, columns;
  std::vector<double> x;
};

double bf16(double x) { return static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(x)))); }

Matrix bf16(Matrix m) {
  for (double& x : m.x) x = bf16(x);
  return m;
}

/// a * b^T
Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.rows);
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.rows; ++j)
      for (int k = 0; k < a.columns; ++k) c(i, j) += a(i, k) * b(j, k);
  return c;
}

Matrix transposed(const Matrix& m) {
  Matrix t(m.columns, m.rows);
  for (int i = 0; i < m.rows; ++i)
    for (int j = 0; j < m.columns; ++j) t(j, i) = m(i, j);
  return t;
}

/// x * 2^(sign * (G - anchor)), rounded. `anchor`: of each channel.
Matrix scaled(const Matrix& x, const Matrix& G, const std::vector<double>& anchor, double sign) {
  Matrix y(x.rows, x.columns);
  for (int i = 0; i < x.rows; ++i)
    for (int d = 0; d < x.columns; ++d)
      y(i, d) = bf16(x(i, d) * std::exp2(sign * (G(i, d) - anchor[static_cast<size_t>(d)])));
  return y;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double activated_beta(flash_kda_beta form, double raw) {
  if (form == FLASH_KDA_BETA_PROBABILITIES) return raw;
  return form == FLASH_KDA_BETA_TWICE_SIGMOID ? 2.0 * sigmoid(raw) : sigmoid(raw);
}

/// The inputs of one chunk, activated: rows are tokens. What q is multiplied by is in q in chunks of one block, and
/// else left for the output, as it is by the fused kernel.
struct Chunk {
  Chunk(const Params& p, const Sequence& sequence, int64_t first, int rows, int head, int chunk)
      : q(rows, p.K),
        k(rows, p.K),
        G(rows, p.K),
        v(rows, p.V),
        beta(static_cast<size_t>(rows)),
        output_factor(static_cast<size_t>(rows)) {
    const int query_head = head / (p.HV / p.H);
    const double slope = p.A_log == nullptr ? 1.0 : std::exp(static_cast<double>(p.A_log[head]));
    for (int i = 0; i < rows; ++i) {
      const auto load = [&](const TokenTensor& x, int h, int d) {
        return load_element(x.data, x.dtype, token_offset(x, sequence.batch, sequence.begin + first + i, h) + d);
      };
      double qq = kNormEpsilon, kk = kNormEpsilon;
      for (int d = 0; d < p.K; ++d) {
        qq += std::pow(load(p.q, query_head, d), 2);
        kk += std::pow(load(p.k, query_head, d), 2);
      }
      const double query_factor = static_cast<double>(p.scale) / (p.l2norm ? std::sqrt(qq) : 1.0);
      output_factor[static_cast<size_t>(i)] = chunk == kBlock ? 1.0 : query_factor;
      for (int d = 0; d < p.K; ++d) {
        q(i, d) = load(p.q, query_head, d) * (chunk == kBlock ? query_factor : 1.0);
        k(i, d) = load(p.k, query_head, d) / (p.l2norm ? std::sqrt(kk) : 1.0);
        const double bias = p.dt_bias == nullptr ? 0.0 : static_cast<double>(p.dt_bias[int64_t{head} * p.K + d]);
        const double gate = static_cast<double>(p.lower_bound) * sigmoid(slope * (load(p.g, head, d) + bias));
        G(i, d) = (i > 0 ? G(i - 1, d) : 0.0) + gate * std::numbers::log2e;
      }
      for (int d = 0; d < p.V; ++d) v(i, d) = load(p.v, head, d);
      beta[static_cast<size_t>(i)] = activated_beta(p.beta_form, load(p.beta, head, 0));
    }
  }

  /// G just before row i, or 0.
  std::vector<double> before(int i) const {
    std::vector<double> sum(static_cast<size_t>(G.columns));
    for (int d = 0; d < G.columns && i > 0; ++d) sum[static_cast<size_t>(d)] = G(i - 1, d);
    return sum;
  }

  Matrix q, k, G, v;
  std::vector<double> beta, output_factor;
};

/// <left_i, k_j> with the decay between them, for j <= i; 0 above the diagonal. Operands have the decay from an anchor,
/// or to it. In chunks of one block that is the middle of the block for keys of the same one. In larger chunks, as the
/// fused kernel has them, it is the chunk's start for block 0, and its end for what is left of block 1.
Matrix decayed_products(const Chunk& c, const Matrix& left, int chunk) {
  const int rows = left.rows;
  Matrix result(rows, rows);
  for (int block = 0; block < rows; block += kBlock) {
    const int end = std::min(block + kBlock, rows);
    std::vector<double> anchor = c.before(end);
    if (chunk == kBlock)
      for (double& x : anchor) x *= 0.5;
    else
      anchor = c.before(block == 0 ? 0 : rows);
    const Matrix products = product(scaled(left, c.G, anchor, 1), scaled(c.k, c.G, anchor, -1));
    for (int i = block; i < end; ++i)
      for (int j = 0; j <= i; ++j) result(i, j) = products(i, j);
  }
  return result;
}

/// (I + strict(A))^-1
Matrix inverse(const Matrix& A) {
  Matrix T(A.rows, A.rows);
  for (int i = 0; i < A.rows; ++i) {
    T(i, i) = 1.0;
    for (int j = 0; j < i; ++j)
      for (int m = j; m < i; ++m) T(i, j) -= A(i, m) * T(m, j);
  }
  return T;
}

/// One chunk of one head: S [V, K] moves on, the outputs [rows, V] are returned.
Matrix step(const Chunk& c, Matrix& S, int chunk) {
  const int rows = c.k.rows, V = S.rows, K = S.columns;
  Matrix A = decayed_products(c, c.k, chunk);
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < rows; ++j) A(i, j) *= c.beta[static_cast<size_t>(i)];
  const Matrix T = bf16(inverse(A)), P = bf16(decayed_products(c, c.q, chunk));
  const std::vector<double> zero = c.before(0), total = c.before(rows);
  const Matrix operand = bf16(S), predicted = product(scaled(c.k, c.G, zero, 1), operand);
  Matrix R(rows, V);
  for (int i = 0; i < rows; ++i)
    for (int d = 0; d < V; ++d) R(i, d) = bf16(c.beta[static_cast<size_t>(i)] * (c.v(i, d) - predicted(i, d)));
  const Matrix U = transposed(bf16(product(T, transposed(R))));  // [V, rows]
  Matrix O = product(scaled(c.q, c.G, zero, 1), operand);
  const Matrix inside = product(P, U);
  for (int i = 0; i < rows; ++i)
    for (int d = 0; d < V; ++d) O(i, d) = c.output_factor[static_cast<size_t>(i)] * (O(i, d) + inside(i, d));
  const Matrix update = product(U, transposed(scaled(c.k, c.G, total, -1)));
  for (int i = 0; i < V; ++i)
    for (int d = 0; d < K; ++d) S(i, d) = S(i, d) * std::exp2(total[static_cast<size_t>(d)]) + update(i, d);
  return O;
}

}  // namespace

void emulate(const Problem& problem, int chunk) {
  const Params p = validate(problem.forward_args(), Purpose::kRun);
  for (int64_t n = 0; n < p.N; ++n)
    for (int head = 0; head < p.HV; ++head) {
      const Sequence sequence = sequence_of(p, n);
      const Slots slots = slots_of(p, n);
      Matrix S(p.V, p.K);
      const auto each_state = [&](const StateTensor& s, int64_t slot, auto fn) {
        if (slot < 0) return;
        for (int i = 0; i < p.V; ++i)
          for (int d = 0; d < p.K; ++d) fn(s.data, s.dtype, state_offset(s, slot, head, i) + d, S(i, d));
      };
      each_state(p.initial_state, slots.read, [](const void* data, flash_kda_dtype dtype, int64_t at, double& element) {
        element = load_element(data, dtype, at);
      });
      for (int64_t first = 0; first < sequence.length; first += chunk) {
        const int rows = static_cast<int>(std::min<int64_t>(chunk, sequence.length - first));
        const Matrix O = step(Chunk(p, sequence, first, rows, head, chunk), S, chunk);
        for (int i = 0; i < rows; ++i)
          for (int d = 0; d < p.V; ++d)
            store_element(p.out.data, p.out.dtype,
                          token_offset(p.out, sequence.batch, sequence.begin + first + i, head) + d, O(i, d));
      }
      each_state(p.final_state, slots.write, [](void* data, flash_kda_dtype dtype, int64_t at, double element) {
        store_element(data, dtype, at, element);
      });
    }
}

std::string faults_beyond_emulation(const Problem& actual, const Problem& emulated, const Problem& oracle) {
  std::string faults = actual.stray_writes();
  for (const char* name : {"out", "final_state"}) {
    const Difference got = difference(actual, oracle, name), expected = difference(emulated, oracle, name);
    if (!got.within(std::numeric_limits<double>::infinity()) || got.relative > 1.15 * expected.relative ||
        got.worst_group > 1.15 * expected.worst_group)
      faults += fmt::format("{}\n  got      {}\n  emulated {}\n", name, to_string(got, 4), to_string(expected, 4));
  }
  return faults;
}

}  // namespace flash_kda::test

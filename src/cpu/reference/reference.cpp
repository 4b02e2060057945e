#include "cpu/reference/reference.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <vector>

#include "common/float_types.h"
#include "common/sequence.h"
#include "cpu/threads.h"

namespace flash_kda::cpu {
namespace {

using Vector = std::vector<double>;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// log(1 + exp(x)), relatively accurate for very negative x and without overflow for large x.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

/// exp(A_log), clamped to fp32's finite range so that 0 * factor stays 0.
double gate_factor(const Params& p, int h) {
  if (p.A_log == nullptr) return 1.0;
  return std::clamp(std::exp(static_cast<double>(p.A_log[h])), 0.0, static_cast<double>(FLT_MAX));
}

/// Natural log-gate of one channel, <= 0.
double log_gate(const Params& p, double g, double factor, double bias) {
  switch (p.gate) {
    case FLASH_KDA_GATE_BOUNDED:
      return static_cast<double>(p.lower_bound) * sigmoid(factor * (g + bias));
    case FLASH_KDA_GATE_SOFTPLUS:
      return -factor * softplus(g + bias);
    case FLASH_KDA_GATE_LOG:
      return g;
  }
  return std::nan("");
}

double beta_of(const Params& p, double raw) {
  switch (p.beta_form) {
    case FLASH_KDA_BETA_LOGITS:
      return sigmoid(raw);
    case FLASH_KDA_BETA_PROBABILITIES:
      return raw;
    case FLASH_KDA_BETA_TWICE_SIGMOID:
      return 2.0 * sigmoid(raw);
  }
  return std::nan("");
}

void load_row(const TokenTensor& x, int64_t offset, Vector& row) {
  for (size_t d = 0; d < row.size(); ++d) row[d] = load_element(x.data, x.dtype, offset + static_cast<int64_t>(d));
}

void normalise(Vector& x) {
  double sum = 0;
  for (double e : x) sum += e * e;
  const double factor = 1.0 / std::sqrt(sum + kNormEpsilon);
  for (double& e : x) e *= factor;
}

void load_state(const Params& p, const StateTensor& source, int64_t slot, int h, Vector& S) {
  if (slot < 0) {
    std::fill(S.begin(), S.end(), 0.0);
    return;
  }
  for (int i = 0; i < p.V; ++i)
    for (int d = 0; d < p.K; ++d)
      S[i * p.K + d] = load_element(source.data, source.dtype, state_offset(source, slot, h, i) + d);
}

void store_state(const Params& p, const StateTensor& target, int64_t slot, int h, const Vector& S) {
  if (slot < 0) return;
  for (int i = 0; i < p.V; ++i)
    for (int d = 0; d < p.K; ++d)
      store_element(target.data, target.dtype, state_offset(target, slot, h, i) + d, S[i * p.K + d]);
}

/// Store S in every checkpoint of sequence n that lies at `offset` tokens.
void store_checkpoints(const Params& p, int64_t n, int h, int64_t offset, const Vector& S) {
  if (offset % kCheckpointStep != 0) return;
  for (int64_t m = 0; m < p.M; ++m)
    if (p.checkpoints[2 * m] == n && p.checkpoints[2 * m + 1] == offset)
      store_state(p, p.checkpoint_state, slot_of(p.checkpoint_state, m), h, S);
}

void run_head(const Params& p, int64_t n, int h) {
  const Sequence sequence = sequence_of(p, n);
  const Slots slots = slots_of(p, n);
  const int query_head = h / (p.HV / p.H);
  const double factor = gate_factor(p, h);
  Vector S(static_cast<size_t>(p.V) * p.K), q(p.K), k(p.K), g(p.K), v(p.V), o(p.V);

  if (!slots.padded) {
    load_state(p, p.initial_state, slots.read, h, S);
    store_checkpoints(p, n, h, 0, S);
  }
  for (int64_t t = 0; t < sequence.length; ++t) {
    const auto offset = [&](const TokenTensor& x, int head) {
      return token_offset(x, sequence.batch, sequence.begin + t, head);
    };
    if (slots.padded) {
      std::fill(o.begin(), o.end(), 0.0);
    } else {
      load_row(p.q, offset(p.q, query_head), q);
      load_row(p.k, offset(p.k, query_head), k);
      load_row(p.v, offset(p.v, h), v);
      load_row(p.g, offset(p.g, h), g);
      const double beta = beta_of(p, load_element(p.beta.data, p.beta.dtype, offset(p.beta, h)));
      if (p.l2norm) {
        normalise(q);
        normalise(k);
      }
      for (int d = 0; d < p.K; ++d) {
        const double bias =
            p.dt_bias == nullptr ? 0.0 : static_cast<double>(p.dt_bias[static_cast<int64_t>(h) * p.K + d]);
        g[d] = std::exp(log_gate(p, g[d], factor, bias));
      }
      for (int i = 0; i < p.V; ++i) {
        double* row = &S[static_cast<size_t>(i) * p.K];
        double predicted = 0;
        for (int d = 0; d < p.K; ++d) {
          row[d] *= g[d];
          predicted += row[d] * k[d];
        }
        const double u = beta * (v[i] - predicted);
        double sum = 0;
        for (int d = 0; d < p.K; ++d) {
          row[d] += u * k[d];
          sum += row[d] * q[d];
        }
        o[i] = static_cast<double>(p.scale) * sum;
      }
    }
    for (int i = 0; i < p.V; ++i) store_element(p.out.data, p.out.dtype, offset(p.out, h) + i, o[i]);
    if (!slots.padded) store_checkpoints(p, n, h, t + 1, S);
  }
  if (!slots.padded) store_state(p, p.final_state, slots.write, h, S);
}

}  // namespace

void run_reference(const Params& p, int threads) {
  threads = static_cast<int>(std::min<int64_t>(threads, p.N * p.HV));
  if (threads > 1) expect_pool();
    // A row and head owns its outputs and its slot; callers that let two rows write one slot get either.
#pragma omp parallel for collapse(2) num_threads(std::max(threads, 1)) schedule(dynamic)
  for (int64_t n = 0; n < p.N; ++n)
    for (int h = 0; h < p.HV; ++h) run_head(p, n, h);
}

}  // namespace flash_kda::cpu

#include "support/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "api/params.h"
#include "common/float_types.h"
#include "support/random.h"

namespace flash_kda::test {
namespace {

using Args = flash_kda_forward_args;

/// One stream of random numbers per quantity.
enum Stream : uint64_t { kQ, kK, kV, kG, kBeta, kALog, kDtBias, kState, kDirection };

int64_t span_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * strides[d];
  }
  return last + 1;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

/// What a family draws from.
class Inputs {
 public:
  Inputs(const Case& c, uint64_t seed)
      : case_(c),
        q_(seed, kQ),
        k_(seed, kK),
        v_(seed, kV),
        g_(seed, kG),
        beta_(seed, kBeta),
        A_log_(seed, kALog),
        dt_bias_(seed, kDtBias),
        state_(seed, kState),
        direction_(seed, kDirection) {}

  /// [K]; unit length where the operator does not normalise.
  std::vector<double> query(uint64_t token, int h) const { return row(q_, token, h); }
  std::vector<double> key(uint64_t token, int h) const { return row(case_.family == Family::kF7 ? q_ : k_, token, h); }

  double value(uint64_t i) const { return v_.normal(i); }
  double state(uint64_t i) const { return state_.normal(i); }

  double A_log(int h) const {
    const double u = A_log_.uniform(static_cast<uint64_t>(h));
    switch (case_.family) {
      case Family::kF1:
        return u;
      case Family::kTrained:
        return std::log(1 + 15 * u);
      case Family::kExtreme:
        return std::log(h == 0 ? 201 : 1 + 200 * u);
      default:
        return 0;
    }
  }

  double dt_bias(int h, int d) const {
    const double u = dt_bias_.uniform(channel(h, d));
    switch (case_.family) {
      case Family::kF1:
        return u;
      case Family::kF5:
        return 16 * u - 8;
      case Family::kTrained:
        return std::log(std::expm1(std::exp(std::log(1e-3) + u * std::log(1e2))));  // step in 0.001 ... 0.1
      case Family::kExtreme:
        return d % 3 == 0 ? 10 + 4 * u : d % 3 == 1 ? -20 + 12 * u : 2 * u - 1;
      default:
        return 0;
    }
  }

  /// The tensor g: raw, or activated for the log gate.
  double gate(uint64_t token, int h, int d) const {
    const double raw = raw_gate(g_.normal(token * heads() * static_cast<uint64_t>(case_.K) + channel(h, d)));
    if (case_.gate != FLASH_KDA_GATE_LOG) return raw;
    const double factor = std::exp(A_log(h)), x = raw + dt_bias(h, d);
    switch (case_.family) {
      case Family::kNoDecay:
        return 0;
      case Family::kExtreme:
        return -factor * softplus(x);
      default:
        return static_cast<double>(case_.lower_bound) * sigmoid(factor * x);
    }
  }

  /// The tensor beta: logits, or probabilities where the form asks for them.
  double beta(uint64_t token, int h) const {
    const double b = beta_.normal(token * heads() + static_cast<uint64_t>(h));
    const double logit = case_.family == Family::kF4 || case_.family == Family::kF8 ? b - 4
                         : case_.family == Family::kF6                              ? b + 3
                         : case_.family == Family::kF7                              ? 8
                                                                                    : b;
    return case_.beta_form == FLASH_KDA_BETA_PROBABILITIES ? sigmoid(logit) : logit;
  }

 private:
  uint64_t heads() const { return static_cast<uint64_t>(case_.value_heads()); }
  uint64_t channel(int h, int d) const {
    return static_cast<uint64_t>(h) * static_cast<uint64_t>(case_.K) + static_cast<uint64_t>(d);
  }

  double raw_gate(double z) const {
    switch (case_.family) {
      case Family::kF2:
        return z / 2 - 4;
      case Family::kF3:
      case Family::kF4:
        return z / 2 - 8;
      case Family::kF5:
        return z / 2;
      case Family::kF6:
        return z / 2 - 9;
      case Family::kF7:
        return -12;
      case Family::kF8:
        return -8;
      default:
        return z;
    }
  }

  std::vector<double> row(const Random& random, uint64_t token, int h) const {
    std::vector<double> x(static_cast<size_t>(case_.K));
    const double noise = case_.family == Family::kF7 ? 0 : case_.family == Family::kF6 ? 0.3 : 1;
    const double common = case_.family == Family::kF6 || case_.family == Family::kF7 ? 1 : 0;
    const uint64_t first = (token * static_cast<uint64_t>(case_.H) + static_cast<uint64_t>(h)) * x.size();
    double square = 0;
    for (size_t d = 0; d < x.size(); ++d) {
      x[d] = common * direction_.normal(channel(h, static_cast<int>(d))) + noise * random.normal(first + d);
      square += x[d] * x[d];
    }
    if (!case_.l2norm)
      for (double& e : x) e /= std::sqrt(square);
    return x;
  }

  const Case& case_;
  Random q_, k_, v_, g_, beta_, A_log_, dt_bias_, state_, direction_;
};

}  // namespace

double get(const flash_kda_tensor& t, const int64_t* at) {
  return load_element(t.data, static_cast<flash_kda_dtype>(t.dtype), offset_of(t, at));
}

void set(const flash_kda_tensor& t, const int64_t* at, double value) {
  store_element(t.data, static_cast<flash_kda_dtype>(t.dtype), offset_of(t, at), value);
}

Block::Block(size_t payload) : size(payload + 2 * kGuard) {
  data_.reset(new unsigned char[size + kAlignment]);
  shift_ = kAlignment - reinterpret_cast<uintptr_t>(data_.get()) % kAlignment;
  std::memset(data(), kPoison, size);
}

SlotPair slots_of(const Case& c, int64_t n) {
  const auto own = static_cast<int32_t>(2 * n + 1), slots = static_cast<int32_t>(2 * c.sequences() + 3);
  switch (n % 7) {
    case 1:
      return {own, own - 1};
    case 3:
      return {-1, own};
    case 4:
      return {own, -1};
    case 5:
      return {-1, -7};
    case 6:
      return {slots, slots + 5};
    default:
      return {own, own};
  }
}

bool is_padded_row(const Case& c, int64_t n) {
  return c.initial == StateRows::kPool && c.final == StateRows::kPool && (n % 7 == 5 || n % 7 == 6);
}

Case oracle_case(Case c) {
  c.out = c.final_dtype = FLASH_KDA_F64;
  c.in_place = false;
  return c;
}

Problem::Problem(Case c, uint64_t seed, flash_kda_backend backend) : case_(std::move(c)), backend_(backend) {
  buffers_.reserve(16);
  add_tokens();
  add_states();
  fill_tokens(seed);
  fill_states(seed);
  take_snapshot();
}

size_t Problem::add_block(int64_t payload) {
  blocks_.emplace_back(static_cast<size_t>(payload));
  return blocks_.size() - 1;
}

void Problem::view(const char* name, Role role, flash_kda_tensor Args::*argument, size_t block, int64_t first,
                   flash_kda_dtype dtype, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  Buffer b{name, role, argument, block, Block::kGuard + static_cast<size_t>(first * size_of(dtype)), {}};
  b.tensor.data = blocks_[block].data() + b.offset;
  b.tensor.dtype = dtype;
  b.tensor.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), b.tensor.shape);
  std::copy(strides.begin(), strides.end(), b.tensor.strides);
  buffers_.push_back(b);
}

Buffer& Problem::add(const char* name, Role role, flash_kda_tensor Args::*argument, flash_kda_dtype dtype,
                     const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  view(name, role, argument, add_block(span_of(shape, strides) * size_of(dtype)), 0, dtype, shape, strides);
  return buffers_.back();
}

void Problem::add_tokens() {
  const Case& c = case_;
  const int64_t B = c.batch(), T = c.tokens(), H = c.H, HV = c.value_heads(), K = c.K, V = c.value_dim();
  // Gaps of 3 elements behind a head and 5 behind a token leave no row aligned to 16 bytes.
  const int64_t head_gap = c.layout == Layout::kPadded ? 3 : 0, token_gap = c.layout == Layout::kPadded ? 5 : 0;
  const auto add_rows = [&](const char* name, Role role, flash_kda_tensor Args::*argument, flash_kda_dtype dtype,
                            int64_t heads, int64_t dim) {
    const int64_t head = dim + head_gap, token = heads * head + token_gap;
    add(name, role, argument, dtype, {B, T, heads, dim}, {T * token, token, head, 1});
  };
  if (c.layout == Layout::kFused) {
    const int64_t token = 2 * H * K + HV * V + 8;
    const size_t block = add_block(B * T * token * size_of(c.qkv));
    view("q", Role::kInput, &Args::q, block, 0, c.qkv, {B, T, H, K}, {T * token, token, K, 1});
    view("k", Role::kInput, &Args::k, block, H * K, c.qkv, {B, T, H, K}, {T * token, token, K, 1});
    view("v", Role::kInput, &Args::v, block, 2 * H * K, c.qkv, {B, T, HV, V}, {T * token, token, V, 1});
  } else {
    add_rows("q", Role::kInput, &Args::q, c.qkv, H, K);
    add_rows("k", Role::kInput, &Args::k, c.qkv, H, K);
    add_rows("v", Role::kInput, &Args::v, c.qkv, HV, V);
  }
  add_rows("g", Role::kInput, &Args::g, c.gate_dtype, HV, K);
  add_rows("out", Role::kOutput, &Args::out, c.out, HV, V);
  const int64_t row = HV + token_gap;
  add("beta", Role::kInput, &Args::beta, c.beta_dtype, {B, T, HV}, {T * row, row, 1});
  if (c.gate_parameters && c.gate != FLASH_KDA_GATE_LOG) {
    add("A_log", Role::kInput, &Args::A_log, FLASH_KDA_F32, {HV}, {1});
    if (c.flat_dt_bias)
      add("dt_bias", Role::kInput, &Args::dt_bias, FLASH_KDA_F32, {HV * K}, {1});
    else
      add("dt_bias", Role::kInput, &Args::dt_bias, FLASH_KDA_F32, {HV, K}, {K, 1});
  }
  if (c.packed()) {
    const flash_kda_dtype dtype = c.wide_cu_seqlens ? FLASH_KDA_I64 : FLASH_KDA_I32;
    const flash_kda_tensor& cu =
        add("cu_seqlens", Role::kInput, &Args::cu_seqlens, dtype, {c.sequences() + 1}, {1}).tensor;
    int64_t end = 0;
    for (int64_t n = 0; n <= c.sequences(); ++n) {
      if (c.wide_cu_seqlens)
        static_cast<int64_t*>(cu.data)[n] = end;
      else
        static_cast<int32_t*>(cu.data)[n] = static_cast<int32_t>(end);
      if (n < c.sequences()) end += c.length(n);
    }
  }
}

void Problem::add_states() {
  const Case& c = case_;
  const int64_t N = c.sequences(), HV = c.value_heads(), K = c.K, V = c.value_dim();
  const auto add_state = [&](const char* name, Role role, flash_kda_tensor Args::*argument, flash_kda_dtype dtype,
                             bool pool, int64_t rows) {
    const int64_t slots = pool ? 2 * rows + 3 : rows, gap = pool ? 24 : 0;
    add(name, role, argument, dtype, {slots, HV, V, K}, {HV * V * K + gap, V * K, K, 1});
  };
  const auto add_index = [&](const char* name, flash_kda_tensor Args::*argument, int64_t rows, auto slot) {
    auto* index = static_cast<int32_t*>(add(name, Role::kInput, argument, FLASH_KDA_I32, {rows}, {1}).tensor.data);
    for (int64_t n = 0; n < rows; ++n) index[n] = slot(n);
  };
  if (c.initial != StateRows::kAbsent) {
    add_state("initial_state", c.in_place ? Role::kOutput : Role::kInput, &Args::initial_state, c.initial_dtype,
              c.initial == StateRows::kPool, N);
    if (c.in_place) {
      Buffer final = buffers_.back();
      final.name = "final_state";
      final.argument = &Args::final_state;
      buffers_.push_back(final);
    }
  }
  if (c.final != StateRows::kAbsent && !c.in_place)
    add_state("final_state", Role::kOutput, &Args::final_state, c.final_dtype, c.final == StateRows::kPool, N);
  if (c.initial == StateRows::kPool)
    add_index("read_index", &Args::read_index, N, [&](int64_t n) { return slots_of(c, n).read; });
  if (c.final == StateRows::kPool)
    add_index("write_index", &Args::write_index, N, [&](int64_t n) { return slots_of(c, n).write; });
  if (c.flags) {
    auto* flag = static_cast<uint8_t*>(
        add("has_initial_state", Role::kInput, &Args::has_initial_state, FLASH_KDA_BOOL, {N}, {1}).tensor.data);
    for (int64_t n = 0; n < N; ++n) flag[n] = n % 3 != 1;
  }
  if (!c.checkpoints.empty()) {
    const auto M = static_cast<int64_t>(c.checkpoints.size());
    auto* point = static_cast<int32_t*>(
        add("checkpoints", Role::kInput, &Args::checkpoints, FLASH_KDA_I32, {M, 2}, {2, 1}).tensor.data);
    for (const auto& [sequence, offset] : c.checkpoints) {
      *point++ = sequence;
      *point++ = offset;
    }
    add_state("checkpoint_state", Role::kOutput, &Args::checkpoint_state, c.final_dtype, c.checkpoint_pool, M);
    if (c.checkpoint_pool)
      add_index("checkpoint_index", &Args::checkpoint_index, M,
                [&](int64_t m) { return m % 5 == 4 ? -1 : static_cast<int32_t>(2 * (M - 1 - m) + 1); });
  }
}

void Problem::fill_tokens(uint64_t seed) {
  const Case& c = case_;
  const Inputs inputs(c, seed);
  const flash_kda_tensor &q = tensor("q"), &k = tensor("k"), &v = tensor("v"), &g = tensor("g"), &beta = tensor("beta");
  int64_t begin = 0;
  for (int64_t n = 0; n < c.sequences(); ++n) {
    for (int64_t i = 0; i < c.length(n) && !is_padded_row(c, n); ++i) {
      const int64_t b = c.packed() ? 0 : n, t = begin + i;
      const auto token = static_cast<uint64_t>(b * c.tokens() + t);
      for (int h = 0; h < c.H; ++h) {
        const std::vector<double> query = inputs.query(token, h), key = inputs.key(token, h);
        for (int d = 0; d < c.K; ++d) {
          set(q, {b, t, h, d}, query[static_cast<size_t>(d)]);
          set(k, {b, t, h, d}, key[static_cast<size_t>(d)]);
        }
      }
      for (int h = 0; h < c.value_heads(); ++h) {
        const auto row = static_cast<uint64_t>(c.value_heads()) * token + static_cast<uint64_t>(h);
        for (int d = 0; d < c.value_dim(); ++d)
          set(v, {b, t, h, d}, inputs.value(row * static_cast<uint64_t>(c.value_dim()) + static_cast<uint64_t>(d)));
        for (int d = 0; d < c.K; ++d) set(g, {b, t, h, d}, inputs.gate(token, h, d));
        set(beta, {b, t, h}, inputs.beta(token, h));
      }
    }
    if (c.packed()) begin += c.length(n);
  }
  if (const Buffer* A_log = find("A_log"))
    for (int h = 0; h < c.value_heads(); ++h) set(A_log->tensor, {h}, inputs.A_log(h));
  if (const Buffer* dt_bias = find("dt_bias"))
    for (int h = 0; h < c.value_heads(); ++h)
      for (int d = 0; d < c.K; ++d)
        static_cast<float*>(dt_bias->tensor.data)[h * c.K + d] = static_cast<float>(inputs.dt_bias(h, d));
}

void Problem::fill_states(uint64_t seed) {
  const Case& c = case_;
  if (c.initial == StateRows::kAbsent) return;
  const Inputs inputs(c, seed);
  const flash_kda_tensor& state = tensor("initial_state");
  for (int64_t n = 0; n < c.sequences(); ++n) {
    const int64_t slot = c.initial == StateRows::kPool ? slots_of(c, n).read : n;
    if (slot < 0 || slot >= state.shape[0] || (c.flags && n % 3 == 1)) continue;
    auto i = static_cast<uint64_t>(n * c.value_heads() * c.value_dim() * c.K);
    for (int h = 0; h < c.value_heads(); ++h)
      for (int r = 0; r < c.value_dim(); ++r)
        for (int d = 0; d < c.K; ++d) set(state, {slot, h, r, d}, inputs.state(i++));
  }
}

const Buffer* Problem::find(const std::string& name) const {
  const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& b) { return b.name == name; });
  return found == buffers_.end() ? nullptr : &*found;
}

const flash_kda_tensor& Problem::tensor(const std::string& name) const {
  if (const Buffer* buffer = find(name)) return buffer->tensor;
  throw std::out_of_range("the case has no " + name);
}

flash_kda_forward_args Problem::forward_args() const {
  std::vector<unsigned char*> base;
  for (const Block& block : blocks_) base.push_back(block.data());
  return forward_args(base);
}

flash_kda_forward_args Problem::forward_args(const std::vector<unsigned char*>& base) const {
  flash_kda_forward_args args;
  flash_kda_forward_args_init(&args);
  for (const Buffer& b : buffers_) {
    args.*b.argument = b.tensor;
    (args.*b.argument).data = base[b.block] + b.offset;
  }
  args.scale = case_.scale;
  args.lower_bound = case_.lower_bound;
  args.gate = case_.gate;
  args.beta_form = case_.beta_form;
  args.l2norm = case_.l2norm ? 1 : 0;
  args.batch_invariant = case_.batch_invariant ? 1 : 0;
  args.cuda_path = case_.cuda_path;
  args.backend = backend_;
  return args;
}

flash_kda_decode_args Problem::decode_args() const {
  if (!case_.in_place) throw std::logic_error("decode needs a case with its states in place");
  const flash_kda_forward_args f = forward_args();
  flash_kda_decode_args d;
  flash_kda_decode_args_init(&d);
  d.q = f.q;
  d.k = f.k;
  d.v = f.v;
  d.g = f.g;
  d.beta = f.beta;
  d.A_log = f.A_log;
  d.dt_bias = f.dt_bias;
  d.cu_seqlens = f.cu_seqlens;
  d.state = f.initial_state;
  d.read_index = f.read_index;
  d.write_index = f.write_index;
  d.has_initial_state = f.has_initial_state;
  d.out = f.out;
  d.scale = f.scale;
  d.lower_bound = f.lower_bound;
  d.gate = f.gate;
  d.beta_form = f.beta_form;
  d.l2norm = f.l2norm;
  d.batch_invariant = f.batch_invariant;
  d.backend = f.backend;
  return d;
}

void Problem::take_snapshot() {
  snapshot_.clear();
  for (const Block& block : blocks_) {
    Block& copy = snapshot_.emplace_back(block.size - 2 * Block::kGuard);
    std::memcpy(copy.data(), block.data(), block.size);
  }
}

flash_kda_tensor Problem::before(const Buffer& buffer) const {
  flash_kda_tensor t = buffer.tensor;
  t.data = snapshot_[buffer.block].data() + buffer.offset;
  return t;
}

std::string Problem::stray_writes(bool outputs_too) const {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    std::vector<bool> writable(blocks_[i].size, false);
    std::string names;
    for (const Buffer& b : buffers_) {
      if (b.block != i) continue;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", b.name);
      if (b.role == Role::kInput || outputs_too) continue;
      const int64_t size = size_of(static_cast<flash_kda_dtype>(b.tensor.dtype));
      for_each_element(b.tensor, [&](const int64_t*, int64_t offset) {
        for (int64_t byte = 0; byte < size; ++byte)
          writable[b.offset + static_cast<size_t>(offset * size + byte)] = true;
      });
    }
    for (size_t byte = 0; byte < blocks_[i].size; ++byte)
      if (!writable[byte] && blocks_[i].data()[byte] != snapshot_[i].data()[byte])
        return fmt::format("stray write: byte {} of the memory of {} ({} bytes) changed",
                           static_cast<int64_t>(byte) - static_cast<int64_t>(Block::kGuard), names,
                           blocks_[i].size - 2 * Block::kGuard);
  }
  return "";
}

}  // namespace flash_kda::test

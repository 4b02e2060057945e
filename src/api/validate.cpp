#include "api/validate.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"

namespace flash_kda {
namespace {

/// A tensor argument with the name users know it by.
struct Argument {
  const char* name;
  const flash_kda_tensor& tensor;

  bool present() const { return tensor.rank != 0; }
  int64_t elements() const {
    int64_t n = 1;
    for (int d = 0; d < tensor.rank; ++d) n *= tensor.shape[d];
    return n;
  }
};

/// One expected extent: its symbol in the documentation, and its value or kAny.
struct Extent {
  static constexpr int64_t kAny = -1;
  const char* symbol;
  int64_t value = kAny;
};

std::string text_of_shape(const flash_kda_tensor& t) {
  return fmt::format("[{}]", fmt::join(t.shape, t.shape + std::clamp(t.rank, 0, FLASH_KDA_MAX_RANK), ", "));
}

std::string text_of_extents(std::initializer_list<Extent> extents) {
  std::vector<std::string> symbols, values;
  bool known = false;
  for (const Extent& e : extents) {
    symbols.emplace_back(e.symbol);
    values.push_back(e.value == Extent::kAny ? std::string(e.symbol) : std::to_string(e.value));
    known = known || e.value != Extent::kAny;
  }
  return known ? fmt::format("[{}] = [{}]", fmt::join(symbols, ", "), fmt::join(values, ", "))
               : fmt::format("[{}]", fmt::join(symbols, ", "));
}

void check_rank(const Argument& a) {
  if (a.tensor.rank < 1 || a.tensor.rank > FLASH_KDA_MAX_RANK)
    fail(FLASH_KDA_ERROR_VALUE, "{}: got rank {}, accepted is 1 to {}", a.name, a.tensor.rank, FLASH_KDA_MAX_RANK);
}

void check_present(const Argument& a) {
  if (!a.present()) fail(FLASH_KDA_ERROR_TYPE, "{}: required, but absent", a.name);
}

/// Rank 0 means absent. A tensor with data but no rank is a mistake, not an absent one.
void check_absent(std::span<const Argument> arguments) {
  for (const Argument& a : arguments)
    if (!a.present() && a.tensor.data != nullptr)
      fail(FLASH_KDA_ERROR_VALUE,
           "{}: got rank 0 with data, accepted is rank 0 with null data (absent), or rank 1 to {}", a.name,
           FLASH_KDA_MAX_RANK);
}

/// The shape must be the one of `extents`; a wrong rank, a wrong extent and a negative one are all refused here.
void check_shape(const Argument& a, std::initializer_list<Extent> extents) {
  check_rank(a);
  bool match = a.tensor.rank == static_cast<int32_t>(extents.size());
  for (size_t d = 0; match && d < extents.size(); ++d) {
    const int64_t expected = extents.begin()[d].value, got = a.tensor.shape[d];
    match = expected == Extent::kAny ? got >= 0 && got < (int64_t{1} << 48) : got == expected;
  }
  if (!match)
    fail(FLASH_KDA_ERROR_VALUE, "{}: got shape {}, accepted is {}", a.name, text_of_shape(a.tensor),
         text_of_extents(extents));
}

void check_dtype(const Argument& a, std::initializer_list<flash_kda_dtype> accepted) {
  if (std::find(accepted.begin(), accepted.end(), a.tensor.dtype) != accepted.end()) return;
  std::vector<const char*> names;
  for (flash_kda_dtype d : accepted) names.push_back(name_of_dtype(d));
  fail(FLASH_KDA_ERROR_TYPE, "{}: got dtype {} ({}), accepted is {}", a.name, name_of_dtype(a.tensor.dtype),
       a.tensor.dtype, fmt::join(names, ", "));
}

/// Number of elements and the distance from the first to the last must fit 62 bits in bytes, so that no later
/// arithmetic on offsets can overflow.
void check_size(const Argument& a) {
  const flash_kda_tensor& t = a.tensor;
  int64_t elements = size_of(static_cast<flash_kda_dtype>(t.dtype)), span = elements;
  bool overflow = false;
  for (int d = 0; d < t.rank; ++d) {
    int64_t step = 0;
    overflow |= __builtin_mul_overflow(elements, std::max<int64_t>(t.shape[d], 1), &elements);
    overflow |=
        __builtin_mul_overflow(std::max<int64_t>(t.shape[d] - 1, 0) * 8, t.shape[d] > 1 ? t.strides[d] : 0, &step);
    overflow |= __builtin_add_overflow(span, step, &span);
  }
  constexpr int64_t kLimit = int64_t{1} << 62;
  if (overflow || elements > kLimit || span > kLimit)
    fail(FLASH_KDA_ERROR_VALUE,
         "{}: got shape {} with strides [{}], accepted is a tensor that spans less than 2^62 bytes", a.name,
         text_of_shape(t), fmt::join(t.strides, t.strides + t.rank, ", "));
}

/// Strides must not be negative and the last `contiguous` dimensions must be packed. Extents of 0 and 1 never move, so
/// their strides are free.
void check_strides(const Argument& a, int contiguous) {
  check_size(a);
  if (a.elements() == 0) return;
  const flash_kda_tensor& t = a.tensor;
  int64_t packed = 1;
  for (int d = t.rank - 1; d >= 0; --d) {
    if (t.shape[d] <= 1) continue;
    if (t.strides[d] < 0)
      fail(FLASH_KDA_ERROR_VALUE, "{}: got stride {} in dimension {}, accepted is 0 or more", a.name, t.strides[d], d);
    if (d >= t.rank - contiguous && t.strides[d] != packed)
      fail(FLASH_KDA_ERROR_VALUE, "{}: got stride {} in dimension {}, accepted is {} (the last {} must be contiguous)",
           a.name, t.strides[d], d, packed, contiguous == 1 ? "dimension" : "dimensions");
    packed *= t.shape[d];
  }
}

void check_data(const Argument& a) {
  if (a.tensor.data == nullptr) {
    if (a.elements() > 0)
      fail(FLASH_KDA_ERROR_VALUE, "{}: data is null, accepted is a pointer to {} elements", a.name, a.elements());
    return;
  }
  const auto address = reinterpret_cast<uintptr_t>(a.tensor.data);
  const auto size = static_cast<uintptr_t>(size_of(static_cast<flash_kda_dtype>(a.tensor.dtype)));
  if (address % size != 0)
    fail(FLASH_KDA_ERROR_VALUE, "{}: got address {:#x}, accepted is a multiple of the element size {}", a.name, address,
         size);
}

// ---- Overlap ----

/// The addresses from the first to behind the last element of a tensor.
struct Range {
  const Argument* argument;
  uintptr_t begin, end;
};

Range range_of(const Argument& a) {
  const flash_kda_tensor& t = a.tensor;
  int64_t elements = 1;
  for (int d = 0; d < t.rank; ++d) elements += (t.shape[d] - 1) * t.strides[d];
  const auto begin = reinterpret_cast<uintptr_t>(t.data);
  return {&a, begin, begin + static_cast<uintptr_t>(elements * size_of(static_cast<flash_kda_dtype>(t.dtype)))};
}

/// A stride of one of two tensors a and b, or of both, and how often each can take it.
struct Step {
  int64_t bytes, a, b;
};

/// Whether two tensors share a byte. Step by step, largest first, it keeps the distances from an element of a to one of
/// b that what is left of the steps can still bring together: one or two where strides nest, as those of views of one
/// buffer do. Where they are too many, the answer is yes.
bool overlaps(const Range& a, const Range& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  std::vector<Step> steps;
  const auto add = [&](const flash_kda_tensor& t, int64_t Step::*count) {
    for (int d = 0; d < t.rank; ++d) {
      const int64_t bytes = t.strides[d] * size_of(static_cast<flash_kda_dtype>(t.dtype));
      if (t.shape[d] <= 1 || bytes == 0) continue;
      auto same = std::find_if(steps.begin(), steps.end(), [&](const Step& step) { return step.bytes == bytes; });
      if (same == steps.end()) same = steps.insert(same, {bytes, 0, 0});
      (*same).*count += t.shape[d] - 1;
    }
  };
  add(a.argument->tensor, &Step::a);
  add(b.argument->tensor, &Step::b);
  std::sort(steps.begin(), steps.end(), [](const Step& x, const Step& y) { return x.bytes > y.bytes; });

  constexpr size_t kMost = 4096;
  auto span_a = static_cast<int64_t>(a.end - a.begin), span_b = static_cast<int64_t>(b.end - b.begin);
  std::vector<int64_t> distances{static_cast<int64_t>(b.begin - a.begin)}, next;
  for (const Step& step : steps) {
    span_a -= step.a * step.bytes;
    span_b -= step.b * step.bytes;
    next.clear();
    for (const int64_t distance : distances) {
      const int64_t last = std::min(step.b, (span_a - distance) / step.bytes + 1);
      for (int64_t i = std::max(-step.a, (-span_b - distance) / step.bytes - 1); i <= last; ++i) {
        const int64_t moved = distance + i * step.bytes;
        if (moved <= -span_b || moved >= span_a) continue;
        if (next.size() == kMost) return true;
        next.push_back(moved);
      }
    }
    distances.swap(next);
  }
  return !distances.empty();
}

/// Elements of an output must be distinct: sorted by stride, every dimension steps over all that is below it.
void check_distinct_elements(const Argument& a) {
  const flash_kda_tensor& t = a.tensor;
  struct Dimension {
    int64_t stride, extent;
  };
  std::array<Dimension, FLASH_KDA_MAX_RANK> dims;  // sorted
  size_t count = 0;
  for (int d = 0; d < t.rank; ++d) {
    if (t.shape[d] == 0) return;
    if (t.shape[d] == 1) continue;
    size_t at = count++;
    for (; at > 0 && dims[at - 1].stride > t.strides[d]; --at) dims[at] = dims[at - 1];
    dims[at] = {t.strides[d], t.shape[d]};
  }
  int64_t below = 1;
  for (const auto& [stride, extent] : std::span(dims).first(count)) {
    if (stride < below)
      fail(FLASH_KDA_ERROR_VALUE,
           "{}: got strides [{}] for shape {}, accepted are strides that step over all that smaller ones reach", a.name,
           fmt::join(t.strides, t.strides + t.rank, ", "), text_of_shape(t));
    below += stride * (extent - 1);
  }
}

/// The same elements at the same places. Extents of 0 and 1 never move, so their strides do not matter.
bool same_memory(const flash_kda_tensor& a, const flash_kda_tensor& b) {
  if (a.data != b.data || a.dtype != b.dtype || a.rank != b.rank) return false;
  for (int d = 0; d < a.rank; ++d)
    if (a.shape[d] != b.shape[d] || (a.shape[d] > 1 && a.strides[d] != b.strides[d])) return false;
  return true;
}

/// No output may share memory with another output or with an input. `initial` and `final` (either may be absent) may be
/// exactly the same memory.
void check_overlap(std::span<const Argument> inputs, std::span<const Argument> outputs, const flash_kda_tensor* initial,
                   const flash_kda_tensor* final) {
  const auto has_memory = [](const Argument& a) { return a.present() && a.tensor.data != nullptr && a.elements() > 0; };
  const auto check_pair = [&](const Range& output, const Argument& other) {
    if (!has_memory(other)) return;
    const bool state_pair = &output.argument->tensor == final && &other.tensor == initial;
    if (state_pair && same_memory(*initial, *final)) return;
    if (overlaps(output, range_of(other)))
      fail(FLASH_KDA_ERROR_VALUE, "{}: its memory overlaps {}, accepted is memory of its own{}", output.argument->name,
           other.name, state_pair ? " or exactly the same tensor" : "");
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!has_memory(outputs[i])) continue;
    check_distinct_elements(outputs[i]);
    const Range range = range_of(outputs[i]);
    for (const Argument& other : outputs.first(i)) check_pair(range, other);
    for (const Argument& input : inputs) check_pair(range, input);
  }
}

// ---- Shared by both operators ----

template <typename Enum>
Enum check_option(const char* name, int32_t value, Enum first, Enum last, const char* accepted) {
  if (value < first || value > last) fail(FLASH_KDA_ERROR_VALUE, "{}: got {}, accepted is {}", name, value, accepted);
  return static_cast<Enum>(value);
}

TokenTensor token_tensor(const flash_kda_tensor& t) {
  return {t.data, static_cast<flash_kda_dtype>(t.dtype), t.strides[0], t.strides[1], t.strides[2]};
}

/// Contiguous [N] control tensor; nullptr if absent.
template <typename T>
const T* vector_argument(const Argument& a, flash_kda_dtype dtype, Extent extent, Purpose purpose) {
  if (!a.present()) return nullptr;
  check_shape(a, {extent});
  check_dtype(a, {dtype});
  check_strides(a, 1);
  if (purpose == Purpose::kRun) check_data(a);
  return static_cast<const T*>(a.tensor.data);
}

/// State tensor [N or slots, HV, V, K]. `rows`: the extent without an index, kAny with one.
StateTensor state_argument(const Argument& a, Extent rows, const Params& p, const int32_t* index, Purpose purpose) {
  check_shape(a, {rows, {"HV", p.HV}, {"V", p.V}, {"K", p.K}});
  if (p.backend == FLASH_KDA_BACKEND_REFERENCE)
    check_dtype(a, {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16, FLASH_KDA_F64});
  else if (p.backend == FLASH_KDA_BACKEND_CPU)
    check_dtype(a, {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16});
  else
    check_dtype(a, {FLASH_KDA_F32, FLASH_KDA_BF16});
  check_strides(a, 1);
  if (purpose == Purpose::kRun) check_data(a);
  const flash_kda_tensor& t = a.tensor;
  return {t.data, static_cast<flash_kda_dtype>(t.dtype), t.shape[0], t.strides[0], t.strides[1], t.strides[2], index};
}

/// Most tokens of a sequence.
constexpr int64_t longest_of(Operator op) {
  return op == Operator::kDecode ? kMaxDecodeTokens : std::numeric_limits<int64_t>::max();
}

/// `cu` in host memory starts at 0, never decreases, ends at T or before. `longest` bounds each sequence.
template <typename T>
void check_entries(const T* cu, const Params& p, int64_t longest) {
  if (cu[0] != 0) fail(FLASH_KDA_ERROR_VALUE, "cu_seqlens[0]: got {}, accepted is 0", cu[0]);
  for (int64_t n = 1; n <= p.N; ++n) {
    if (cu[n] < cu[n - 1])
      fail(FLASH_KDA_ERROR_VALUE, "cu_seqlens[{}]: got {} after {}, accepted is a sequence that never decreases", n,
           cu[n], cu[n - 1]);
    if (cu[n] > p.T) fail(FLASH_KDA_ERROR_VALUE, "cu_seqlens[{}]: got {}, accepted is at most T = {}", n, cu[n], p.T);
    if (cu[n] - cu[n - 1] > longest)
      fail(FLASH_KDA_ERROR_VALUE, "cu_seqlens[{}]: got a sequence of {} tokens, accepted is at most {}", n,
           cu[n] - cu[n - 1], longest);
  }
}

/// Everything that forward and decode have in common: tokens, parameters, options. Args is either argument struct.
template <typename Args>
Params validate_common(const Args& args, Operator op, Purpose purpose) {
  if (args.struct_size != sizeof(Args))
    fail(FLASH_KDA_ERROR_VALUE, "struct_size: got {}, accepted is {} (call flash_kda_{}_args_init first)",
         args.struct_size, sizeof(Args), op == Operator::kForward ? "forward" : "decode");
  Params p;
  p.op = op;
  p.backend = check_option("backend", args.backend, FLASH_KDA_BACKEND_CPU, FLASH_KDA_BACKEND_REFERENCE,
                           "1 (CPU), 2 (CUDA) or 3 (reference)");
  p.gate = check_option("gate", args.gate, FLASH_KDA_GATE_BOUNDED, FLASH_KDA_GATE_LOG,
                        "1 (bounded), 2 (softplus) or 3 (log)");
  p.beta_form = check_option("beta_form", args.beta_form, FLASH_KDA_BETA_LOGITS, FLASH_KDA_BETA_TWICE_SIGMOID,
                             "1 (logits), 2 (probabilities) or 3 (twice sigmoid)");
  p.l2norm = args.l2norm != 0;
  p.batch_invariant = args.batch_invariant != 0;
  p.check_cu_seqlens = args.check_cu_seqlens != 0;
  p.device = args.device;
  p.num_threads = args.num_threads;
  p.stream = args.stream;
  p.workspace = args.workspace;
  p.workspace_size = args.workspace_size;
  if (p.device < 0) fail(FLASH_KDA_ERROR_VALUE, "device: got {}, accepted is 0 or more", p.device);
  if (p.num_threads < 0)
    fail(FLASH_KDA_ERROR_VALUE, "num_threads: got {}, accepted is 0 (automatic) or more", p.num_threads);

  const Argument q{"q", args.q}, k{"k", args.k}, v{"v", args.v}, g{"g", args.g}, beta{"beta", args.beta},
      out{"out", args.out};
  for (const Argument* a : {&q, &k, &v, &g, &beta, &out}) check_present(*a);
  check_shape(q, {{"B"}, {"T"}, {"H"}, {"K"}});
  p.B = q.tensor.shape[0];
  p.T = q.tensor.shape[1];
  const int64_t H = q.tensor.shape[2], K = q.tensor.shape[3];
  check_shape(k, {{"B", p.B}, {"T", p.T}, {"H", H}, {"K", K}});
  check_shape(v, {{"B", p.B}, {"T", p.T}, {"HV"}, {"V"}});
  const int64_t HV = v.tensor.shape[2], V = v.tensor.shape[3];
  constexpr int64_t kMaxHeads = 1 << 20;
  if (H < 1 || H > kMaxHeads) fail(FLASH_KDA_ERROR_VALUE, "q: got H = {} heads, accepted is 1 to {}", H, kMaxHeads);
  if (HV < 1 || HV > kMaxHeads || HV % H != 0)
    fail(FLASH_KDA_ERROR_VALUE, "v: got HV = {} heads, accepted is a multiple of H = {}, at most {}", HV, H, kMaxHeads);
  if (K < 1 || K > kMaxHeadDim) fail(FLASH_KDA_ERROR_VALUE, "q: got K = {}, accepted is 1 to {}", K, kMaxHeadDim);
  if (V < 1 || V > kMaxHeadDim) fail(FLASH_KDA_ERROR_VALUE, "v: got V = {}, accepted is 1 to {}", V, kMaxHeadDim);
  p.H = static_cast<int>(H);
  p.HV = static_cast<int>(HV);
  p.K = static_cast<int>(K);
  p.V = static_cast<int>(V);
  check_shape(g, {{"B", p.B}, {"T", p.T}, {"HV", HV}, {"K", K}});
  check_shape(beta, {{"B", p.B}, {"T", p.T}, {"HV", HV}});
  check_shape(out, {{"B", p.B}, {"T", p.T}, {"HV", HV}, {"V", V}});

  for (const Argument* a : {&q, &k, &v, &g, &beta}) check_dtype(*a, {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16});
  for (const Argument* a : {&k, &v})
    if (a->tensor.dtype != q.tensor.dtype)
      fail(FLASH_KDA_ERROR_TYPE, "{}: got dtype {}, accepted is the dtype of q, {}", a->name,
           name_of_dtype(a->tensor.dtype), name_of_dtype(q.tensor.dtype));
  if (p.backend == FLASH_KDA_BACKEND_REFERENCE)
    check_dtype(out, {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16, FLASH_KDA_F64});
  else
    check_dtype(out, {FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16});
  for (const Argument* a : {&q, &k, &v, &g, &out}) check_strides(*a, 1);
  check_strides(beta, 0);
  if (purpose == Purpose::kRun)
    for (const Argument* a : {&q, &k, &v, &g, &beta, &out}) check_data(*a);
  p.q = token_tensor(q.tensor);
  p.k = token_tensor(k.tensor);
  p.v = token_tensor(v.tensor);
  p.g = token_tensor(g.tensor);
  p.beta = token_tensor(beta.tensor);
  p.out = token_tensor(out.tensor);

  const Argument A_log{"A_log", args.A_log}, dt_bias{"dt_bias", args.dt_bias};
  p.A_log = vector_argument<float>(A_log, FLASH_KDA_F32, {"HV", HV}, purpose);
  if (dt_bias.present()) {
    check_rank(dt_bias);
    if (dt_bias.tensor.rank == 1)
      check_shape(dt_bias, {{"HV * K", HV * K}});
    else
      check_shape(dt_bias, {{"HV", HV}, {"K", K}});
    check_dtype(dt_bias, {FLASH_KDA_F32});
    check_strides(dt_bias, dt_bias.tensor.rank);
    if (purpose == Purpose::kRun) check_data(dt_bias);
    p.dt_bias = static_cast<const float*>(dt_bias.tensor.data);
  }
  if (p.gate == FLASH_KDA_GATE_LOG)
    for (const Argument* a : {&A_log, &dt_bias})
      if (a->present())
        fail(FLASH_KDA_ERROR_VALUE, "{}: given with the log gate, accepted is absent (g is the activated log-gate)",
             a->name);

  const Argument cu{"cu_seqlens", args.cu_seqlens};
  p.N = p.B;
  if (cu.present()) {
    if (p.B != 1) fail(FLASH_KDA_ERROR_VALUE, "q: got B = {}, accepted with cu_seqlens is B = 1", p.B);
    check_shape(cu, {{"N + 1"}});
    if (cu.tensor.shape[0] < 1)
      fail(FLASH_KDA_ERROR_VALUE, "cu_seqlens: got shape [0], accepted is [N + 1] with N >= 0");
    check_dtype(cu, {FLASH_KDA_I32, FLASH_KDA_I64});
    check_strides(cu, 1);
    p.N = cu.tensor.shape[0] - 1;
    p.packed = true;
    p.cu_seqlens = cu.tensor.data;
    p.cu_seqlens_is_64bit = cu.tensor.dtype == FLASH_KDA_I64;
    if (purpose == Purpose::kRun) check_data(cu);
  }
  if (cu.present() && purpose == Purpose::kRun && p.backend != FLASH_KDA_BACKEND_CUDA)
    check_cu_seqlens(p, p.cu_seqlens);
  if (!cu.present() && p.T > longest_of(op))
    fail(FLASH_KDA_ERROR_VALUE, "q: got T = {}, accepted by decode is at most {}", p.T, longest_of(op));

  if (p.gate == FLASH_KDA_GATE_BOUNDED && !(args.lower_bound >= -5.0F && args.lower_bound < 0.0F))
    fail(FLASH_KDA_ERROR_VALUE, "lower_bound: got {}, accepted is -5 <= lower_bound < 0", args.lower_bound);
  p.lower_bound = args.lower_bound;
  p.scale = args.scale == FLASH_KDA_DEFAULT_SCALE ? 1.0F / std::sqrt(static_cast<float>(K)) : args.scale;
  if (!std::isfinite(p.scale)) fail(FLASH_KDA_ERROR_VALUE, "scale: got {}, accepted is a finite number", args.scale);

  p.has_initial_state =
      vector_argument<uint8_t>({"has_initial_state", args.has_initial_state}, FLASH_KDA_BOOL, {"N", p.N}, purpose);
  return p;
}

/// The inputs that both operators have, and `more`; a state that is read is not among the former.
template <typename Args, typename... More>
auto inputs_of(const Args& args, const More&... more) {
  return std::array{Argument{"q", args.q},
                    Argument{"k", args.k},
                    Argument{"v", args.v},
                    Argument{"g", args.g},
                    Argument{"beta", args.beta},
                    Argument{"A_log", args.A_log},
                    Argument{"dt_bias", args.dt_bias},
                    Argument{"cu_seqlens", args.cu_seqlens},
                    Argument{"read_index", args.read_index},
                    Argument{"write_index", args.write_index},
                    Argument{"has_initial_state", args.has_initial_state},
                    more...};
}

/// The checkpoints of host memory: sequences exist, offsets are multiples of kCheckpointStep.
void check_checkpoints(const Params& p) {
  for (int64_t m = 0; m < p.M; ++m) {
    const int32_t sequence = p.checkpoints[2 * m], offset = p.checkpoints[2 * m + 1];
    if (sequence < 0 || sequence >= p.N)
      fail(FLASH_KDA_ERROR_VALUE, "checkpoints[{}]: got sequence {}, accepted is 0 to N - 1 = {}", m, sequence,
           p.N - 1);
    if (offset < 0 || offset % kCheckpointStep != 0)
      fail(FLASH_KDA_ERROR_VALUE, "checkpoints[{}]: got offset {}, accepted is 0 or a positive multiple of {}", m,
           offset, kCheckpointStep);
  }
}

}  // namespace

void check_cu_seqlens(const Params& params, const void* host_copy) {
  if (params.cu_seqlens_is_64bit)
    check_entries(static_cast<const int64_t*>(host_copy), params, longest_of(params.op));
  else
    check_entries(static_cast<const int32_t*>(host_copy), params, longest_of(params.op));
}

Params validate(const flash_kda_forward_args& args, Purpose purpose) {
  Params p = validate_common(args, Operator::kForward, purpose);
  p.cuda_path = check_option("cuda_path", args.cuda_path, FLASH_KDA_CUDA_PATH_AUTO, FLASH_KDA_CUDA_PATH_FUSED,
                             "0 (automatic), 1 (two kernels) or 2 (fused)");

  const Argument initial{"initial_state", args.initial_state}, final{"final_state", args.final_state};
  const Argument read{"read_index", args.read_index}, write{"write_index", args.write_index};
  const Argument points{"checkpoints", args.checkpoints}, states{"checkpoint_state", args.checkpoint_state};
  const Argument point_index{"checkpoint_index", args.checkpoint_index};
  const std::array inputs = inputs_of(args, initial, points, point_index);
  const std::array outputs{Argument{"out", args.out}, final, states};
  check_absent(inputs);
  check_absent(outputs);

  if (read.present() && !initial.present())
    fail(FLASH_KDA_ERROR_VALUE, "read_index: given without initial_state, accepted is both or neither");
  if (write.present() && !final.present())
    fail(FLASH_KDA_ERROR_VALUE, "write_index: given without final_state, accepted is both or neither");
  if (p.has_initial_state != nullptr && !initial.present())
    fail(FLASH_KDA_ERROR_VALUE, "has_initial_state: given without initial_state, accepted is both or neither");
  const Extent n{"N", p.N}, slots{"slots"};
  if (initial.present()) {
    const auto* index = vector_argument<int32_t>(read, FLASH_KDA_I32, n, purpose);
    p.initial_state = state_argument(initial, read.present() ? slots : n, p, index, purpose);
  }
  if (final.present()) {
    const auto* index = vector_argument<int32_t>(write, FLASH_KDA_I32, n, purpose);
    p.final_state = state_argument(final, write.present() ? slots : n, p, index, purpose);
  }

  if (points.present() != states.present())
    fail(FLASH_KDA_ERROR_VALUE, "{}: given without {}, accepted is both or neither",
         points.present() ? points.name : states.name, points.present() ? states.name : points.name);
  if (point_index.present() && !points.present())
    fail(FLASH_KDA_ERROR_VALUE, "checkpoint_index: given without checkpoints, accepted is both or neither");
  if (points.present()) {
    check_shape(points, {{"M"}, {"2", 2}});
    check_dtype(points, {FLASH_KDA_I32});
    check_strides(points, 2);
    if (purpose == Purpose::kRun) check_data(points);
    p.M = points.tensor.shape[0];
    p.checkpoints = static_cast<const int32_t*>(points.tensor.data);
    const Extent m{"M", p.M};
    const auto* slot = vector_argument<int32_t>(point_index, FLASH_KDA_I32, m, purpose);
    p.checkpoint_state = state_argument(states, point_index.present() ? slots : m, p, slot, purpose);
    if (purpose == Purpose::kRun && p.backend != FLASH_KDA_BACKEND_CUDA) check_checkpoints(p);
  }

  if (purpose == Purpose::kRun) check_overlap(inputs, outputs, &args.initial_state, &args.final_state);
  return p;
}

Params validate(const flash_kda_decode_args& args, Purpose purpose) {
  Params p = validate_common(args, Operator::kDecode, purpose);
  const Argument state{"state", args.state}, read{"read_index", args.read_index},
      write{"write_index", args.write_index};
  const std::array inputs = inputs_of(args);
  const std::array outputs{Argument{"out", args.out}, state};
  check_absent(inputs);
  check_present(state);
  const Extent n{"N", p.N};
  const auto* read_index = vector_argument<int32_t>(read, FLASH_KDA_I32, n, purpose);
  const auto* write_index = write.present() ? vector_argument<int32_t>(write, FLASH_KDA_I32, n, purpose) : read_index;
  if (write.present() && !read.present())
    fail(FLASH_KDA_ERROR_VALUE, "write_index: given without read_index, accepted is both, or read_index alone");
  p.initial_state = state_argument(state, read.present() ? Extent{"slots"} : n, p, read_index, purpose);
  p.final_state = p.initial_state;
  p.final_state.index = write_index;
  if (purpose == Purpose::kRun) check_overlap(inputs, outputs, nullptr, nullptr);
  return p;
}

}  // namespace flash_kda

// The module flash_kda._native: Python arguments -> argument struct -> C interface. One table per operator names its
// tensors, so that both share every line of code. flash_kda/_operators.py is the only caller.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "flash_kda/flash_kda.h"
#include "import_tensor.h"

namespace nb = nanobind;

namespace flash_kda::python {
namespace {

// ---- Errors

PyObject* exception_of(flash_kda_status status) {
  switch (status) {
    case FLASH_KDA_ERROR_TYPE:
      return PyExc_TypeError;
    case FLASH_KDA_ERROR_VALUE:
      return PyExc_ValueError;
    case FLASH_KDA_ERROR_MEMORY:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

void check(flash_kda_status status) {
  if (status != FLASH_KDA_OK) throw Error(status, flash_kda_last_error());
}

// ---- Options

float float_option(const char* name, nb::handle value) {
  const double number = PyFloat_AsDouble(value.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(FLASH_KDA_ERROR_TYPE, "{}: got {}, accepted is a number", name, nb::inst_name(value).c_str());
  }
  const auto rounded = static_cast<float>(number);
  if (std::isinf(rounded) && !std::isinf(number))
    fail(FLASH_KDA_ERROR_VALUE, "{}: got {}, accepted is a number in the range of float32", name, number);
  return rounded;
}

int32_t int_option(const char* name, nb::handle value) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid() || PyBool_Check(value.ptr())) {
    PyErr_Clear();
    fail(FLASH_KDA_ERROR_TYPE, "{}: got {}, accepted is an integer", name, nb::repr(value).c_str());
  }
  int32_t number = 0;
  if (!nb::try_cast(index, number, false))
    fail(FLASH_KDA_ERROR_VALUE, "{}: got {}, accepted is an integer of 32 bits", name, nb::repr(value).c_str());
  return number;
}

int32_t bool_option(const char* name, nb::handle value) {
  bool flag = false;
  if (!nb::try_cast(value, flag, false))
    fail(FLASH_KDA_ERROR_TYPE, "{}: got {}, accepted is True or False", name, nb::repr(value).c_str());
  return flag ? 1 : 0;
}

struct Choice {
  const char* text;
  int32_t value;
  int32_t cuda_path = FLASH_KDA_CUDA_PATH_AUTO;  ///< of a backend
};
constexpr Choice kGates[] = {
    {"bounded", FLASH_KDA_GATE_BOUNDED}, {"softplus", FLASH_KDA_GATE_SOFTPLUS}, {"log", FLASH_KDA_GATE_LOG}};
constexpr Choice kBetaForms[] = {{"logits", FLASH_KDA_BETA_LOGITS},
                                 {"probabilities", FLASH_KDA_BETA_PROBABILITIES},
                                 {"twice_sigmoid", FLASH_KDA_BETA_TWICE_SIGMOID}};
/// Those that fix the path are last: only forward has paths.
constexpr Choice kBackends[] = {
    {"cpu", FLASH_KDA_BACKEND_CPU},
    {"cuda", FLASH_KDA_BACKEND_CUDA},
    {"reference", FLASH_KDA_BACKEND_REFERENCE},
    {"cuda/two_kernel", FLASH_KDA_BACKEND_CUDA, FLASH_KDA_CUDA_PATH_TWO_KERNEL},
    {"cuda/fused", FLASH_KDA_BACKEND_CUDA, FLASH_KDA_CUDA_PATH_FUSED},
};
constexpr size_t kBackendsWithoutPath = 3;

/// "'a', 'b'": the choices that are `accepted`.
template <typename Predicate>
std::string names_of(std::span<const Choice> choices, Predicate accepted) {
  std::string names;
  for (const Choice& choice : choices)
    if (accepted(choice)) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", choice.text);
  return names;
}

const Choice& choice_option(const char* name, nb::handle value, std::span<const Choice> choices) {
  const char* text = PyUnicode_Check(value.ptr()) ? PyUnicode_AsUTF8AndSize(value.ptr(), nullptr) : nullptr;
  for (const Choice& choice : choices)
    if (text != nullptr && std::string_view(text) == choice.text) return choice;
  PyErr_Clear();  // text that is no valid UTF-8
  fail(text == nullptr ? FLASH_KDA_ERROR_TYPE : FLASH_KDA_ERROR_VALUE, "{}: got {}, accepted is one of {}", name,
       nb::repr(value).c_str(), names_of(choices, [](const Choice&) { return true; }));
}

// ---- Operators

template <typename Args>
struct TensorMember {
  const char* name;
  flash_kda_tensor Args::*tensor;
  Access access = Access::kRead;
};

/// The order in which _operators.py passes the tensors.
constexpr auto kForwardTensors = [] {
  using A = flash_kda_forward_args;
  return std::array{TensorMember<A>{"q", &A::q},
                    TensorMember<A>{"k", &A::k},
                    TensorMember<A>{"v", &A::v},
                    TensorMember<A>{"g", &A::g},
                    TensorMember<A>{"beta", &A::beta},
                    TensorMember<A>{"A_log", &A::A_log},
                    TensorMember<A>{"dt_bias", &A::dt_bias},
                    TensorMember<A>{"cu_seqlens", &A::cu_seqlens},
                    TensorMember<A>{"initial_state", &A::initial_state},
                    TensorMember<A>{"final_state", &A::final_state, Access::kWrite},
                    TensorMember<A>{"read_index", &A::read_index},
                    TensorMember<A>{"write_index", &A::write_index},
                    TensorMember<A>{"has_initial_state", &A::has_initial_state},
                    TensorMember<A>{"checkpoints", &A::checkpoints},
                    TensorMember<A>{"checkpoint_state", &A::checkpoint_state, Access::kWrite},
                    TensorMember<A>{"checkpoint_index", &A::checkpoint_index},
                    TensorMember<A>{"out", &A::out, Access::kWrite}};
}();
constexpr auto kDecodeTensors = [] {
  using A = flash_kda_decode_args;
  return std::array{TensorMember<A>{"q", &A::q},
                    TensorMember<A>{"k", &A::k},
                    TensorMember<A>{"v", &A::v},
                    TensorMember<A>{"g", &A::g},
                    TensorMember<A>{"beta", &A::beta},
                    TensorMember<A>{"A_log", &A::A_log},
                    TensorMember<A>{"dt_bias", &A::dt_bias},
                    TensorMember<A>{"cu_seqlens", &A::cu_seqlens},
                    TensorMember<A>{"state", &A::state, Access::kWrite},
                    TensorMember<A>{"read_index", &A::read_index},
                    TensorMember<A>{"write_index", &A::write_index},
                    TensorMember<A>{"has_initial_state", &A::has_initial_state},
                    TensorMember<A>{"out", &A::out, Access::kWrite}};
}();

struct Forward {
  using Args = flash_kda_forward_args;
  static constexpr std::span<const TensorMember<Args>> kTensors = kForwardTensors;
  static constexpr auto kInit = flash_kda_forward_args_init;
  static constexpr auto kRun = flash_kda_forward;
  static constexpr auto kWorkspaceSize = flash_kda_forward_workspace_size;
};

struct Decode {
  using Args = flash_kda_decode_args;
  static constexpr std::span<const TensorMember<Args>> kTensors = kDecodeTensors;
  static constexpr auto kInit = flash_kda_decode_args_init;
  static constexpr auto kRun = flash_kda_decode;
  static constexpr auto kWorkspaceSize = flash_kda_decode_workspace_size;
};

bool is_host(dlpack::Device device) { return device.type == dlpack::kCpu || device.type == dlpack::kCudaHost; }

/// There is a backend for host memory and one for CUDA.
void check_supported(dlpack::Device device) {
  if (!is_host(device) && device.type != dlpack::kCuda && device.type != dlpack::kCudaManaged)
    fail(FLASH_KDA_ERROR_DEVICE, "q: on {}, accepted is the CPU or a CUDA GPU", name_of(device));
}

/// All tensors must be where q is; host memory is one place, pinned or not.
void check_device(const char* name, dlpack::Device device, dlpack::Device first) {
  if (is_host(device) ? is_host(first) : device.type == first.type && device.id == first.id) return;
  fail(FLASH_KDA_ERROR_DEVICE, "{}: on {}, accepted is the device of q, {}", name, name_of(device), name_of(first));
}

/// The backend that serves memory of `device`, and the path on it; "cpu" and "reference" share host memory.
template <typename Args>
void choose_backend(Args& args, dlpack::Device device, nb::handle wanted) {
  constexpr bool kHasPaths = requires { args.cuda_path; };
  const std::span choices = std::span(kBackends).first(kHasPaths ? std::size(kBackends) : kBackendsWithoutPath);
  const bool host = is_host(device);
  if (wanted.is_none()) {
    args.backend = host ? FLASH_KDA_BACKEND_CPU : FLASH_KDA_BACKEND_CUDA;
    return;
  }
  const Choice& choice = choice_option("backend", wanted, choices);
  const auto serves = [host](const Choice& c) { return (c.value == FLASH_KDA_BACKEND_CUDA) != host; };
  if (!serves(choice))
    fail(FLASH_KDA_ERROR_DEVICE, "backend: got '{}' for tensors on {}, accepted there is one of {}", choice.text,
         name_of(device), names_of(choices, serves));
  args.backend = choice.value;
  if constexpr (kHasPaths) args.cuda_path = choice.cuda_path;
}

/// Device memory of the call: the caller's, or what the framework of q allocates. The result keeps it until the launch
/// is enqueued.
template <typename Operator>
nb::object attach_workspace(typename Operator::Args& args, nb::handle given, nb::handle q, Call& call,
                            dlpack::Device device) {
  View view;
  if (given.is_none()) {
    if (args.backend != FLASH_KDA_BACKEND_CUDA) return {};
    check(Operator::kWorkspaceSize(&args, &args.workspace_size));
    if (args.workspace_size == 0) return {};
    view = allocate(q, args.workspace_size, device, args.stream);
  } else {
    view = import_tensor("workspace", given, Access::kWrite, call);
    check_device("workspace", view.device, device);
    if (view.rank != 1 || (view.shape[0] > 1 && view.strides[0] != 1))
      fail(FLASH_KDA_ERROR_VALUE, "workspace: got rank {}, accepted is one contiguous dimension", view.rank);
  }
  args.workspace = view.data;
  args.workspace_size = static_cast<size_t>(view.shape[0]) * view.dtype.bits / 8 * view.dtype.lanes;
  return std::move(view.owner);
}

/// Head-first tensors pass the checks of shape until something has the length of the heads: what to add to that
/// message.
template <typename Args>
const char* layout_hint(const Args& args) {
  if (args.q.rank != 4 || args.q.shape[1] == args.q.shape[2]) return "";
  const bool beta_swapped = args.beta.rank == 3 && args.beta.shape[1] == args.q.shape[2];
  const bool gate_swapped = args.A_log.rank == 1 && args.A_log.shape[0] == args.q.shape[1];
  return beta_swapped || gate_swapped ? " (is q [B, H, T, K]? accepted is [B, T, H, K], and so for k, v, g and out)"
                                      : "";
}

/// `tensors` in the order of Operator::kTensors, None where absent.
template <typename Operator>
void run(const nb::tuple& tensors, nb::handle scale, nb::handle lower_bound, nb::handle gate, nb::handle beta_form,
         nb::handle l2norm, nb::handle batch_invariant, nb::handle check_cu_seqlens, nb::handle backend,
         nb::handle num_threads, nb::handle stream, nb::handle workspace) {
  typename Operator::Args args;
  Operator::kInit(&args);
  if (!scale.is_none()) args.scale = float_option("scale", scale);
  args.lower_bound = float_option("lower_bound", lower_bound);
  args.gate = choice_option("gate", gate, kGates).value;
  args.beta_form = choice_option("beta_form", beta_form, kBetaForms).value;
  args.l2norm = bool_option("l2norm", l2norm);
  args.batch_invariant = bool_option("batch_invariant", batch_invariant);
  args.check_cu_seqlens = bool_option("check_cu_seqlens", check_cu_seqlens);
  args.num_threads = int_option("num_threads", num_threads);

  Call call;
  if (!stream.is_none()) {
    uintptr_t address = 0;
    if (!nb::try_cast(stream, address, false))
      fail(FLASH_KDA_ERROR_TYPE, "stream: got {}, accepted is a cudaStream_t as an integer",
           nb::inst_name(stream).c_str());
    call.stream = std::bit_cast<void*>(address);
  }
  dlpack::Device device;
  std::array<nb::object, Operator::kTensors.size()> owners;
  for (size_t i = 0; i < Operator::kTensors.size(); ++i) {
    const auto& [name, member, access] = Operator::kTensors[i];
    const nb::handle object = tensors[i];
    if (object.is_none()) {
      if (i == 0) fail(FLASH_KDA_ERROR_TYPE, "q: required, but None");
      continue;
    }
    View view = import_tensor(name, object, access, call);
    if (i == 0) check_supported(device = view.device);
    check_device(name, view.device, device);
    args.*member = to_flash_kda(name, view);
    owners[i] = std::move(view.owner);
  }
  choose_backend(args, device, backend);
  args.device = is_host(device) ? 0 : device.id;
  args.stream = call.stream.value_or(nullptr);
  const nb::object workspace_owner = attach_workspace<Operator>(args, workspace, tensors[0], call, device);

  flash_kda_status status;
  {
    const nb::gil_scoped_release release;
    status = Operator::kRun(&args);
  }
  if (status == FLASH_KDA_ERROR_VALUE) fail(status, "{}{}", flash_kda_last_error(), layout_hint(args));
  check(status);
}

// ---- Inquiries

/// Bytes of workspace of the call that the drop-in `fwd` describes by T, H and N, on GPU `device`.
size_t forward_workspace_size(int64_t tokens, int64_t heads, int64_t sequences, int32_t device) {
  constexpr int64_t kHeadDim = 128;
  const auto tensor = [](flash_kda_dtype dtype, std::initializer_list<int64_t> shape) {
    flash_kda_tensor t{};
    t.dtype = dtype;
    for (int64_t extent : shape) t.shape[t.rank++] = extent;
    int64_t stride = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
      t.strides[d] = stride;
      stride *= t.shape[d];
    }
    return t;
  };
  flash_kda_forward_args args;
  flash_kda_forward_args_init(&args);
  args.q = args.k = args.v = args.g = args.out = tensor(FLASH_KDA_BF16, {1, tokens, heads, kHeadDim});
  args.beta = tensor(FLASH_KDA_BF16, {1, tokens, heads});
  args.A_log = tensor(FLASH_KDA_F32, {heads});
  args.dt_bias = tensor(FLASH_KDA_F32, {heads, kHeadDim});
  args.cu_seqlens = tensor(FLASH_KDA_I64, {sequences + 1});
  args.initial_state = args.final_state = tensor(FLASH_KDA_F32, {sequences, heads, kHeadDim, kHeadDim});
  args.backend = FLASH_KDA_BACKEND_CUDA;
  args.device = device;
  size_t bytes = 0;
  check(flash_kda_forward_workspace_size(&args, &bytes));
  return bytes;
}

std::string info() {
  std::vector<char> text(size_t{64} << 10);
  check(flash_kda_info(text.data(), text.size()));
  return text.data();
}

}  // namespace
}  // namespace flash_kda::python

NB_MODULE(_native, m) {
  using namespace flash_kda::python;
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const flash_kda::Error& error) {
      PyErr_SetString(exception_of(error.status()), error.what());
    }
  });
  const auto define = [&m](const char* name, auto function) {
    m.def(name, function, nb::arg("tensors"), nb::arg("scale").none(), nb::arg("lower_bound").none(),
          nb::arg("gate").none(), nb::arg("beta_form").none(), nb::arg("l2norm").none(),
          nb::arg("batch_invariant").none(), nb::arg("check_cu_seqlens").none(), nb::arg("backend").none(),
          nb::arg("num_threads").none(), nb::arg("stream").none(), nb::arg("workspace").none());
  };
  define("forward", &run<Forward>);
  define("decode", &run<Decode>);
  m.def("forward_workspace_size", &forward_workspace_size);
  m.def("info", [] { return nb::str(info().c_str()); });
  m.def("version", &flash_kda_version);
}

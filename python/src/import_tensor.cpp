#include "import_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <string_view>

#include "api/error.h"

namespace nb = nanobind;

namespace flash_kda::python {
namespace {

constexpr const char* kAccepted = "accepted is a tensor of NumPy, torch, JAX, CuPy or anything else with __dlpack__";

/// NumPy's documented C side of __array_struct__ (https://numpy.org/doc/stable/reference/arrays.interface.html).
struct ArrayInterface {
  int two;  // always 2, a check of the capsule
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;  // in bytes
  void* data;
  PyObject* descr;
};
constexpr int kNativeByteOrder = 0x200;
constexpr int kWriteable = 0x400;

std::string text_of(dlpack::DataType t) {
  const char* kind = "type code ";
  switch (t.code) {
    case dlpack::kInt:
      kind = "int";
      break;
    case dlpack::kUInt:
      kind = "uint";
      break;
    case dlpack::kFloat:
      kind = "float";
      break;
    case dlpack::kBfloat:
      kind = "bfloat";
      break;
    case dlpack::kComplex:
      kind = "complex";
      break;
    case dlpack::kBool:
      return "bool";
    default:
      return fmt::format("with DLPack code {} and {} bits", t.code, t.bits);
  }
  return fmt::format("{}{}", kind, t.bits);
}

View view_of(const dlpack::Tensor& t) {
  View view;
  view.data = t.data == nullptr ? nullptr : static_cast<std::byte*>(t.data) + t.byte_offset;
  view.dtype = t.dtype;
  view.device = t.device;
  view.rank = t.ndim;
  int64_t packed = 1;
  for (int d = std::min(t.ndim, FLASH_KDA_MAX_RANK) - 1; d >= 0; --d) {
    view.shape[d] = t.shape[d];
    view.strides[d] = t.strides == nullptr ? packed : t.strides[d];
    packed *= t.shape[d];
  }
  return view;
}

[[noreturn]] void fail_read_only(const char* name) {
  fail(FLASH_KDA_ERROR_VALUE, "{}: its memory is read-only, accepted is memory that can be written", name);
}

/// What torch, where it is loaded, records now.
Gradients recorded_gradients() {
  static PyObject* backward = nullptr;  // functions and modules, kept for the life of the process
  static PyObject* forward = nullptr;
  if (backward == nullptr) {
    const nb::object torch = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
    if (!torch.is_valid()) {
      PyErr_Clear();
      return {};
    }
    forward = nb::object(torch.attr("autograd").attr("forward_ad")).release().ptr();
    backward = nb::object(torch.attr("is_grad_enabled")).release().ptr();
  }
  static PyObject* const level_name = PyUnicode_InternFromString("_current_level");
  const nb::object enabled = nb::steal(PyObject_CallNoArgs(backward));
  if (!enabled.is_valid()) throw nb::python_error();
  const nb::object level = nb::steal(PyObject_GetAttr(forward, level_name));
  if (!level.is_valid()) PyErr_Clear();  // it is not documented: without it every tensor is asked
  return {.backward = enabled.ptr() == Py_True, .forward = !level.is_valid() || nb::cast<int>(level) >= 0};
}

/// torch: gradients are recorded by the framework, not by this call, so a tensor that asks for them would silently get
/// none.
void check_no_gradient(const char* name, nb::handle object, Call& call) {
  if (!call.gradients) call.gradients = recorded_gradients();
  if (call.gradients->backward) {
    static PyObject* const attribute = PyUnicode_InternFromString("requires_grad");
    const nb::object required = nb::steal(PyObject_GetAttr(object.ptr(), attribute));
    if (!required.is_valid()) {  // another library with the exchange API
      PyErr_Clear();
      return;
    }
    if (required.ptr() == Py_True) nb::module_::import_("flash_kda._arrays").attr("refuse_requires_grad")(name);
  }
  if (call.gradients->forward) nb::module_::import_("flash_kda._arrays").attr("refuse_tangent")(name, object);
}

/// torch: `z.conj().imag` is a view whose elements are negated as they are read.
void check_not_negated(const char* name, nb::handle object) {
  const nb::object is_negated = nb::getattr(object, "is_neg", nb::none());
  if (is_negated.is_none() || !nb::cast<bool>(is_negated())) return;
  fail(FLASH_KDA_ERROR_TYPE, "{}: got a view that torch negates as it reads it, accepted is {}.resolve_neg()", name,
       name);
}

/// nullptr: none, or a version that this module does not know. Looked up once a type, as a missing attribute costs more
/// than the rest of an import; the dictionary keeps the types alive.
const dlpack::ExchangeApi* exchange_api_of(nb::handle object) {
  static PyObject* const known = PyDict_New();
  auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()));
  PyObject* capsule = PyDict_GetItemWithError(known, type);
  if (capsule == nullptr) {
    const nb::object found = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (PyDict_SetItem(known, type, found.ptr()) != 0) throw nb::python_error();
    capsule = found.ptr();
  }
  if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
  return api->version.major == 1 && api->tensor_from_py_object_no_sync != nullptr ? api : nullptr;
}

[[noreturn]] void raise_unreadable(const char* name, nb::python_error& cause) {
  const nb::str text(cause.value());
  std::string_view reason = text.c_str();
  reason = reason.substr(0, reason.find('\n'));  // torch appends its own C++ stack
  nb::raise_from(cause, PyExc_TypeError, "%s: its memory cannot be read: %s", name, std::string(reason).c_str());
}

View import_exchange(const char* name, nb::handle object, const dlpack::ExchangeApi& api, Call& call) {
  check_no_gradient(name, object, call);
  dlpack::Tensor tensor{};
  if (api.tensor_from_py_object_no_sync(object.ptr(), &tensor) != 0) {
    nb::python_error cause;
    raise_unreadable(name, cause);
  }
  if (!call.stream && tensor.device.type == dlpack::kCuda) {
    void* current = nullptr;
    if (api.current_work_stream(tensor.device.type, tensor.device.id, &current) != 0) throw nb::python_error();
    call.stream = current;
  }
  View view = view_of(tensor);
  // Parts of complex numbers have even strides: asking only those keeps the question, 0.1 us, out of most calls.
  const auto strides = std::span(view.strides).first(std::min(view.rank, FLASH_KDA_MAX_RANK));
  if (std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride % 2 == 0; }))
    check_not_negated(name, object);
  return view;
}

/// ml_dtypes' bfloat16 has no kind of its own in the array interface ('V'): its name tells.
dlpack::DataType type_of(const char* name, nb::handle object, const ArrayInterface& a) {
  const auto bits = static_cast<uint8_t>(a.itemsize * 8);
  switch (a.typekind) {
    case 'f':
      return {dlpack::kFloat, bits, 1};
    case 'i':
      return {dlpack::kInt, bits, 1};
    case 'u':
      return {dlpack::kUInt, bits, 1};
    case 'b':
      return {dlpack::kBool, bits, 1};
    case 'c':
      return {dlpack::kComplex, bits, 1};
    default:
      break;
  }
  const nb::object scalar_name = object.attr("dtype").attr("type").attr("__name__");
  const char* dtype = nb::borrow<nb::str>(scalar_name).c_str();
  if (std::string_view(dtype) == "bfloat16") return {dlpack::kBfloat, bits, 1};
  fail(FLASH_KDA_ERROR_TYPE, "{}: got dtype {}, accepted is a numeric one of this library", name, dtype);
}

/// NumPy: what is behind the mask of a masked array is exported too.
void check_not_masked(const char* name, nb::handle object) {
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) == "numpy.ndarray" || !nb::hasattr(object, "mask")) return;
  fail(FLASH_KDA_ERROR_TYPE, "{}: got a masked array, accepted is one without a mask, such as {}.filled(0)", name,
       name);
}

View import_array_struct(const char* name, nb::handle object, nb::handle capsule, Access access) {
  const auto* a = static_cast<const ArrayInterface*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  if (a == nullptr) throw nb::python_error();
  if (a->two != 2) fail(FLASH_KDA_ERROR_TYPE, "{}: got a malformed __array_struct__, {}", name, kAccepted);
  if ((a->flags & kNativeByteOrder) == 0)
    fail(FLASH_KDA_ERROR_TYPE, "{}: got elements in foreign byte order, accepted is the machine's own", name);
  if (access == Access::kWrite && (a->flags & kWriteable) == 0) fail_read_only(name);
  View view;
  view.data = a->data;
  view.dtype = type_of(name, object, *a);
  view.device = {dlpack::kCpu, 0};
  view.rank = a->nd;
  for (int d = 0; d < std::min(a->nd, FLASH_KDA_MAX_RANK); ++d) {
    if (a->strides[d] % a->itemsize != 0)
      fail(FLASH_KDA_ERROR_VALUE,
           "{}: got a stride of {} bytes in dimension {}, accepted is a multiple of the element size {}", name,
           a->strides[d], d, a->itemsize);
    view.shape[d] = a->shape[d];
    view.strides[d] = a->strides[d] / a->itemsize;
  }
  return view;
}

/// The consumer's stream in the numbering of __dlpack__, where 0 is ambiguous and 1 is the legacy default stream.
nb::object dlpack_stream(void* stream) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  return nb::int_(number == 0 ? uintptr_t{1} : number);
}

/// `object.__dlpack__`, with the version that this module reads where the producer (DLPack 1.0 and later) knows the
/// keyword.
nb::object dlpack_capsule(nb::handle object, nb::dict arguments) {
  const nb::object produce = object.attr("__dlpack__");
  arguments["max_version"] = nb::make_tuple(1, 3);
  try {
    return produce(**arguments);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  nb::del(arguments["max_version"]);
  return produce(**arguments);
}

View import_dlpack(const char* name, nb::object object, Access access, Call& call) {
  const nb::module_ arrays = nb::module_::import_("flash_kda._arrays");
  const nb::str library(arrays.attr("library_of")(object));
  const bool is_torch = std::string_view(library.c_str()) == "torch";
  if (is_torch) {  // before 2.10, whose __dlpack__ refuses what requires grad also where none is recorded
    check_no_gradient(name, object, call);
    check_not_negated(name, object);
    object = object.attr("detach")();
  }
  nb::object device;
  try {
    device = object.attr("__dlpack_device__")();
  } catch (nb::python_error& cause) {
    raise_unreadable(name, cause);
  }
  nb::dict arguments;
  if (nb::cast<int32_t>(device[0]) == dlpack::kCuda) {
    if (!call.stream)
      call.stream = std::bit_cast<void*>(nb::cast<uintptr_t>(arrays.attr("current_stream")(name, object)));
    arguments["stream"] = dlpack_stream(*call.stream);
  }
  nb::object capsule;
  try {
    capsule = dlpack_capsule(object, arguments);
  } catch (nb::python_error& cause) {
    raise_unreadable(name, cause);
  }

  View view;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* managed =
        static_cast<dlpack::ManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (access == Access::kWrite && (managed->flags & dlpack::kReadOnly) != 0) fail_read_only(name);
    view = view_of(managed->tensor);
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    view = view_of(static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor);
  } else {
    fail(FLASH_KDA_ERROR_TYPE, "{}: got a __dlpack__ that returns no tensor capsule, {}", name, kAccepted);
  }
  view.owner = std::move(capsule);  // never renamed, so its own destructor gives the memory back
  return view;
}

}  // namespace

View import_tensor(const char* name, nb::handle object, Access access, Call& call) {
  if (const dlpack::ExchangeApi* api = exchange_api_of(object)) return import_exchange(name, object, *api, call);
  if (const nb::object capsule = nb::getattr(object, "__array_struct__", nb::none()); !capsule.is_none()) {
    check_not_masked(name, object);
    return import_array_struct(name, object, capsule, access);
  }
  const nb::str type = nb::inst_name(object);
  const bool is_jax = std::string_view(type.c_str()).starts_with("jax");
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(object, "__dlpack_device__"))
    fail(FLASH_KDA_ERROR_TYPE, "{}: got {}, {}{}", name, type.c_str(), kAccepted,
         is_jax ? "; inside jax.jit, call through jax.pure_callback" : "");
  // JAX arrays are immutable, which the unversioned capsule that JAX exports cannot say.
  if (access == Access::kWrite && is_jax)
    fail(FLASH_KDA_ERROR_TYPE,
         "{}: got a JAX array, which is immutable, accepted is a tensor that can be written (or leave it to "
         "flash_kda.forward, which returns fresh arrays)",
         name);
  return import_dlpack(name, nb::borrow(object), access, call);
}

View allocate(nb::handle like, size_t bytes, dlpack::Device device, void* stream) {
  if (const dlpack::ExchangeApi* api = exchange_api_of(like); api != nullptr && api->managed_tensor_allocator) {
    // It allocates for the framework's current stream, which a stream given by the caller may not be.
    void* current = nullptr;
    if (api->current_work_stream(device.type, device.id, &current) != 0) throw nb::python_error();
    auto extent = static_cast<int64_t>(bytes);
    dlpack::Tensor prototype{nullptr, device, 1, {dlpack::kUInt, 8, 1}, &extent, nullptr, 0};
    dlpack::ManagedTensorVersioned* managed = nullptr;
    const auto ignore_error = [](void*, const char*, const char*) {};  // below, the framework raises its own
    if (current == stream && api->managed_tensor_allocator(&prototype, &managed, nullptr, ignore_error) == 0) {
      View view = view_of(managed->tensor);
      view.owner = nb::capsule(managed, [](void* tensor) noexcept {
        auto* owned = static_cast<dlpack::ManagedTensorVersioned*>(tensor);
        owned->deleter(owned);
      });
      return view;
    }
    PyErr_Clear();
  }
  nb::object memory = nb::module_::import_("flash_kda._arrays")
                          .attr("allocate_workspace")(like, bytes, reinterpret_cast<uintptr_t>(stream));
  Call call{stream, Gradients{}};
  View view = import_tensor("workspace", memory, Access::kWrite, call);
  if (!view.owner.is_valid()) view.owner = std::move(memory);  // a capsule keeps its producer alive by itself
  return view;
}

std::string name_of(dlpack::Device device) {
  switch (device.type) {
    case dlpack::kCpu:
      return "cpu";
    case dlpack::kCuda:
      return fmt::format("cuda:{}", device.id);
    default:
      return fmt::format("DLPack device type {}", device.type);
  }
}

flash_kda_tensor to_flash_kda(const char* name, const View& view) {
  struct Row {
    dlpack::TypeCode code;
    int bits;
    flash_kda_dtype dtype;
  };
  static constexpr Row kTypes[] = {{dlpack::kFloat, 32, FLASH_KDA_F32}, {dlpack::kBfloat, 16, FLASH_KDA_BF16},
                                   {dlpack::kFloat, 16, FLASH_KDA_F16}, {dlpack::kFloat, 64, FLASH_KDA_F64},
                                   {dlpack::kInt, 32, FLASH_KDA_I32},   {dlpack::kInt, 64, FLASH_KDA_I64},
                                   {dlpack::kBool, 8, FLASH_KDA_BOOL}};
  const auto* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                 [&](const Row& r) { return r.code == view.dtype.code && r.bits == view.dtype.bits; });
  if (row == std::end(kTypes) || view.dtype.lanes != 1)
    fail(FLASH_KDA_ERROR_TYPE,
         "{}: got dtype {}, accepted is one of float32, bfloat16, float16, float64, int32, int64, bool", name,
         text_of(view.dtype));
  if (view.rank == 0)
    fail(FLASH_KDA_ERROR_VALUE, "{}: got a scalar, accepted is rank 1 to {}", name, FLASH_KDA_MAX_RANK);
  flash_kda_tensor tensor{};
  tensor.data = view.data;
  tensor.dtype = row->dtype;
  tensor.rank = view.rank;
  std::copy(view.shape.begin(), view.shape.end(), tensor.shape);
  std::copy(view.strides.begin(), view.strides.end(), tensor.strides);
  return tensor;
}

}  // namespace flash_kda::python

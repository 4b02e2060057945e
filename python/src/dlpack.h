// The parts of the DLPack 1.3 ABI that this module reads (https://dmlc.github.io/dlpack/latest/c_api.html): the tensor,
// its two capsules and the C exchange API. Declared here because no package that a build can rely on ships a header
// with the exchange API; layout and member order are fixed by the standard.
#pragma once

#include <cstdint>

namespace flash_kda::python::dlpack {

enum DeviceType : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6 };

struct Device {
  int32_t type = 0;
  int32_t id = 0;
};

struct DataType {
  uint8_t code = 0;
  uint8_t bits = 0;
  uint16_t lanes = 0;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  ///< in elements; nullptr (before 1.2): contiguous
  uint64_t byte_offset;
};

/// What a capsule named "dltensor" points to.
struct ManagedTensor {
  Tensor tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

inline constexpr uint64_t kReadOnly = 1;

/// What a capsule named "dltensor_versioned" points to.
struct ManagedTensorVersioned {
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned*);
  uint64_t flags;
  Tensor tensor;
};

/// What the capsule `type(x).__dlpack_c_exchange_api__`, named "dlpack_exchange_api", points to. Functions return 0, or
/// -1 with a Python error set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  /// Memory of prototype's device, type and shape; an error goes to set_error(context, kind, message). May be null.
  int (*managed_tensor_allocator)(Tensor* prototype, ManagedTensorVersioned** out, void* context,
                                  void (*set_error)(void* context, const char* kind, const char* message));
  void* managed_tensor_from_py_object_no_sync;
  void* managed_tensor_to_py_object_no_sync;
  int (*tensor_from_py_object_no_sync)(void* object, Tensor* out);  ///< borrowed view; may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace flash_kda::python::dlpack

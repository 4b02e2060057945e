// Python object -> strided view of memory, without a copy, whatever array library it comes from.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "dlpack.h"
#include "flash_kda/flash_kda.h"

namespace flash_kda::python {

enum class Access { kRead, kWrite };

/// A borrowed view. Valid while the Python object and `owner` live.
struct View {
  void* data = nullptr;
  dlpack::DataType dtype;
  dlpack::Device device;
  int32_t rank = 0;
  std::array<int64_t, FLASH_KDA_MAX_RANK> shape{};    ///< the first min(rank, FLASH_KDA_MAX_RANK) extents
  std::array<int64_t, FLASH_KDA_MAX_RANK> strides{};  ///< in elements
  nanobind::object owner;                             ///< the capsule of a __dlpack__ call
};

/// What torch records of the operations on its tensors.
struct Gradients {
  bool backward = false;  ///< of tensors that require grad
  bool forward = false;   ///< of tensors with a tangent (torch.autograd.forward_ad)
};

/// What the tensors of one call share, found out once.
struct Call {
  std::optional<void*>
      stream;  ///< cudaStream_t; the first tensor in the memory of a GPU decides, unless the caller did
  std::optional<Gradients> gradients;  ///< recorded now
};

/// Three protocols, the fastest first: the DLPack C exchange API (torch), the array interface (NumPy), __dlpack__ (JAX,
/// CuPy and others; ordered on the stream for GPU memory). `name` is the argument's, for messages. Throws Error or
/// nb::python_error.
View import_tensor(const char* name, nanobind::handle object, Access access, Call& call);

/// `bytes` of memory on `device` from the framework of `like`, for work on `stream` and in the order of it: the
/// framework may hand the memory out again for later work on that stream once `owner` is gone. Throws what the
/// framework raises.
View allocate(nanobind::handle like, size_t bytes, dlpack::Device device, void* stream);

/// "cpu", "cuda:1"
std::string name_of(dlpack::Device device);

/// The view as the library's tensor. Throws Error for a type that the library does not have.
flash_kda_tensor to_flash_kda(const char* name, const View& view);

}  // namespace flash_kda::python

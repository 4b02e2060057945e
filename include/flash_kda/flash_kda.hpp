/// FlashKDA for C++17: a thin layer over flash_kda.h, which says what every member means, with its shape and type. It
/// adds initialised argument structs, exceptions instead of statuses, and a helper that describes a tensor in one line:
///
///     flash_kda::ForwardArgs args;
///     args.q = flash_kda::tensor(q.data(), FLASH_KDA_BF16, {B, T, H, K});
///     ...
///     flash_kda::forward(args);  // throws flash_kda::Error
///
/// Header only; the only thing to link is the target flash_kda::flash_kda.
#ifndef FLASH_KDA_FLASH_KDA_HPP_
#define FLASH_KDA_FLASH_KDA_HPP_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "flash_kda/error.hpp"
#include "flash_kda/flash_kda.h"

namespace flash_kda {

namespace detail {

/// Throw this thread's last message unless `status` is FLASH_KDA_OK.
inline void check(flash_kda_status status) {
  if (status != FLASH_KDA_OK) throw Error(status, flash_kda_last_error());
}

}  // namespace detail

/// Extents or strides, outermost first: 1 to FLASH_KDA_MAX_RANK of them, else the constructors throw Error.
class Extents {
 public:
  Extents(std::initializer_list<int64_t> values) : Extents(values.begin(), values.size()) {}
  Extents(const std::vector<int64_t>& values) : Extents(values.data(), values.size()) {}
  Extents(const int64_t* values, size_t size) : rank_(static_cast<int32_t>(size)) {
    if (size < 1 || size > FLASH_KDA_MAX_RANK)
      throw Error(FLASH_KDA_ERROR_VALUE, "shape or strides: got " + std::to_string(size) +
                                             " dimensions, accepted is 1 to " + std::to_string(FLASH_KDA_MAX_RANK));
    for (size_t d = 0; d < size; ++d) values_[d] = values[d];
  }

  int32_t rank() const noexcept { return rank_; }
  int64_t operator[](int32_t dimension) const noexcept { return values_[dimension]; }

 private:
  int64_t values_[FLASH_KDA_MAX_RANK] = {};
  int32_t rank_;
};

/// A view of `data` with the given strides, in elements. The memory is written only where the view is given as an
/// output or as a state to be written. Throws Error if shape and strides differ in rank.
inline flash_kda_tensor tensor(const void* data, flash_kda_dtype dtype, const Extents& shape, const Extents& strides) {
  if (shape.rank() != strides.rank())
    throw Error(FLASH_KDA_ERROR_VALUE, "strides: got " + std::to_string(strides.rank()) +
                                           " dimensions, accepted is the shape's " + std::to_string(shape.rank()));
  flash_kda_tensor view{};
  view.data = const_cast<void*>(data);
  view.dtype = dtype;
  view.rank = shape.rank();
  for (int32_t d = 0; d < shape.rank(); ++d) {
    view.shape[d] = shape[d];
    view.strides[d] = strides[d];
  }
  return view;
}

/// A view of `data` with packed row-major strides.
inline flash_kda_tensor tensor(const void* data, flash_kda_dtype dtype, const Extents& shape) {
  flash_kda_tensor view = tensor(data, dtype, shape, shape);
  uint64_t packed = 1;  // unsigned: an absurd shape wraps around, and is refused by name in the call that gets it
  for (int32_t d = shape.rank(); d-- > 0;) {
    view.strides[d] = static_cast<int64_t>(packed);
    packed *= static_cast<uint64_t>(shape[d]);
  }
  return view;
}

/// flash_kda_forward_args with absent tensors and the defaults of flash_kda.h.
struct ForwardArgs : flash_kda_forward_args {
  ForwardArgs() { flash_kda_forward_args_init(this); }
};

/// flash_kda_decode_args with absent tensors and the defaults of flash_kda.h.
struct DecodeArgs : flash_kda_decode_args {
  DecodeArgs() { flash_kda_decode_args_init(this); }
};

/// Kimi Delta Attention over whole sequences (formula and source: flash_kda.h). Reads q, k [B, T, H, K], v [B, T, HV,
/// V], g [B, T, HV, K], beta [B, T, HV] and the optional members; writes out [B, T, HV, V], and final_state [N, HV, V,
/// K] and checkpoint_state [M, HV, V, K] where present. On CUDA it returns when the work is enqueued on args.stream.
/// Throws Error.
inline void forward(const flash_kda_forward_args& args) { detail::check(flash_kda_forward(&args)); }

/// Up to eight tokens a sequence on the pool args.state [slots, HV, V, K], which is read and written in place; writes
/// out [B, T, HV, V]. On CUDA it returns when the work is enqueued on args.stream. Throws Error.
inline void decode(const flash_kda_decode_args& args) { detail::check(flash_kda_decode(&args)); }

/// Bytes of device memory that the call can use as args.workspace (0 on the CPU); the fused kernel gives the same bits
/// with less. Shapes, types and options decide; data pointers may be null. Throws Error.
inline size_t workspace_size(const flash_kda_forward_args& args) {
  size_t bytes = 0;
  detail::check(flash_kda_forward_workspace_size(&args, &bytes));
  return bytes;
}
inline size_t workspace_size(const flash_kda_decode_args& args) {
  size_t bytes = 0;
  detail::check(flash_kda_decode_workspace_size(&args, &bytes));
  return bytes;
}

/// The plan of the call, "path=... key=value ... reason=...": which path it takes and why. Data pointers may be null.
/// Throws Error.
inline std::string describe(const flash_kda_forward_args& args) {
  std::vector<char> text(4096);
  detail::check(flash_kda_forward_describe(&args, text.data(), text.size()));
  return text.data();
}
inline std::string describe(const flash_kda_decode_args& args) {
  std::vector<char> text(4096);
  detail::check(flash_kda_decode_describe(&args, text.data(), text.size()));
  return text.data();
}

/// What this build and machine can do, as a JSON object (see flash_kda_info). Throws Error.
inline std::string info() {
  std::vector<char> text(65536);
  detail::check(flash_kda_info(text.data(), text.size()));
  return text.data();
}

/// "major.minor.patch" of the library that is loaded; FLASH_KDA_VERSION is the one compiled against.
inline std::string version() { return flash_kda_version(); }

}  // namespace flash_kda

#endif  // FLASH_KDA_FLASH_KDA_HPP_

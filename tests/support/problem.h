// A Case with memory: host buffers, filled inputs, poisoned outputs, guarded edges, and the argument structs over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "flash_kda/flash_kda.h"
#include "support/case.h"

namespace flash_kda::test {

/// Every byte that no test has filled: NaN in every floating-point type, -1 as an index.
inline constexpr unsigned char kPoison = 0xff;

enum class Role {
  kInput,   ///< never written
  kOutput,  ///< written; may hold inputs too (a state pool)
};

/// One allocation. The tensors lie between two guards of kGuard bytes; what no element covers stays poisoned.
struct Block {
  static constexpr size_t kGuard = 256;      // bytes
  static constexpr size_t kAlignment = 256;  // bytes, that of the address behind the first guard

  explicit Block(size_t payload);
  unsigned char* data() const { return data_.get() + shift_; }

  size_t size;  ///< bytes, guards included

 private:
  std::unique_ptr<unsigned char[]> data_;
  size_t shift_;
};

/// One tensor argument of the call.
struct Buffer {
  const char* name;
  Role role;
  flash_kda_tensor flash_kda_forward_args::*argument;
  size_t block;             ///< index into blocks()
  size_t offset;            ///< bytes from the beginning of the block to the first element
  flash_kda_tensor tensor;  ///< in host memory
};

class Problem {
 public:
  /// Inputs follow from `seed` and coordinates alone: the same for every layout, and for every type up to its rounding.
  /// Rows that no sequence owns, tokens of padded rows, and states that must not be read stay poisoned.
  Problem(Case c, uint64_t seed, flash_kda_backend backend);

  const Case& shape() const { return case_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  /// nullptr if the case has no such argument.
  const Buffer* find(const std::string& name) const;
  const flash_kda_tensor& tensor(const std::string& name) const;

  /// Arguments over the host buffers.
  flash_kda_forward_args forward_args() const;
  /// Arguments over copies of the blocks: base[i] is where block i begins.
  flash_kda_forward_args forward_args(const std::vector<unsigned char*>& base) const;
  /// The case must have its states in place.
  flash_kda_decode_args decode_args() const;

  /// Take what the buffers hold now as the state before the call (the constructor does).
  void take_snapshot();
  /// What `tensor` (one of buffers()) was at the snapshot.
  flash_kda_tensor before(const Buffer& buffer) const;
  /// Bytes that changed since the snapshot and belong to no element of an output, as a message; "" if there are none.
  /// With `outputs_too`, elements of outputs must not have changed either.
  std::string stray_writes(bool outputs_too = false) const;

 private:
  size_t add_block(int64_t payload);
  Buffer& add(const char* name, Role role, flash_kda_tensor flash_kda_forward_args::*argument, flash_kda_dtype dtype,
              const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);
  void view(const char* name, Role role, flash_kda_tensor flash_kda_forward_args::*argument, size_t block,
            int64_t first, flash_kda_dtype dtype, const std::vector<int64_t>& shape,
            const std::vector<int64_t>& strides);
  void add_tokens();
  void add_states();
  void fill_tokens(uint64_t seed);
  void fill_states(uint64_t seed);

  Case case_;
  flash_kda_backend backend_;
  std::vector<Block> blocks_;
  std::vector<Buffer> buffers_;
  std::vector<Block> snapshot_;
};

/// The state slots of sequence n of a case with pools: of seven sequences in a row, one starts from zero, one is not
/// stored, one is written elsewhere than it was read, and two are padded rows (negative indices, and indices past the
/// pool).
struct SlotPair {
  int32_t read;
  int32_t write;
};
SlotPair slots_of(const Case& c, int64_t n);
/// Both indices say "none": the outputs of the sequence are zero.
bool is_padded_row(const Case& c, int64_t n);

/// The same call with fp64 outputs and states of its own, for the reference backend.
Case oracle_case(Case c);

/// Offset of an element, in elements.
inline int64_t offset_of(const flash_kda_tensor& t, const int64_t* at) {
  int64_t offset = 0;
  for (int d = 0; d < t.rank; ++d) offset += at[d] * t.strides[d];
  return offset;
}

/// One element of a floating-point tensor.
double get(const flash_kda_tensor& t, const int64_t* at);
void set(const flash_kda_tensor& t, const int64_t* at, double value);
inline double get(const flash_kda_tensor& t, std::initializer_list<int64_t> at) { return get(t, at.begin()); }
inline void set(const flash_kda_tensor& t, std::initializer_list<int64_t> at, double value) {
  set(t, at.begin(), value);
}

/// Calls fn(coordinates, offset in elements) for every element.
template <typename Function>
void for_each_element(const flash_kda_tensor& t, Function fn) {
  int64_t i[FLASH_KDA_MAX_RANK] = {};
  for (int d = 0; d < t.rank; ++d)
    if (t.shape[d] == 0) return;
  for (;;) {
    fn(i, offset_of(t, i));
    int d = t.rank - 1;
    while (d >= 0 && ++i[d] == t.shape[d]) i[d--] = 0;
    if (d < 0) return;
  }
}

/// Every element of tensor `name` <- fn(its coordinates).
template <typename Function>
void assign(const Problem& problem, const char* name, Function fn) {
  const flash_kda_tensor& t = problem.tensor(name);
  for_each_element(t, [&](const int64_t* at, int64_t) { set(t, at, fn(at)); });
}

}  // namespace flash_kda::test

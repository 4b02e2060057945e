// Tensors in safetensors files (https://huggingface.co/docs/safetensors): 8 bytes of header length (little endian), a
// JSON header that names each tensor's dtype, shape and place, then the tensors' bytes without holes.
//
// A file is untrusted: every function here either returns something consistent or throws flash_kda::Error, whose
// message names the file, the tensor, what was got and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flash_kda/flash_kda.h"

namespace flash_kda::io {

/// Uninitialised bytes, aligned for every vector instruction.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t size);  ///< throws std::bad_alloc

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t size_ = 0;
};

/// A packed row-major tensor of any rank, also 0 (one element). Invariant: data.size() is what dtype and shape say.
struct Tensor {
  flash_kda_dtype dtype = FLASH_KDA_F32;
  std::vector<int64_t> shape;
  Buffer data;

  Tensor() = default;
  Tensor(flash_kda_dtype type, std::vector<int64_t> extents);  ///< allocates; throws Error if the size overflows

  int64_t elements() const;
};

struct File {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;  ///< the header's __metadata__
};

/// Parse a whole file in memory. `name` stands for it in messages.
File parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

/// Read a file. Tensors go from the file to their buffers directly.
File read_safetensors(const std::string& path);

/// Throws Error unless `path` can become an output: its folder exists, and it is new or a regular file.
void check_output_path(const std::string& path);

/// Write `parts` behind one another under a temporary name beside `path`, then rename: a failure leaves what was there
/// before.
void write_file(const std::string& path, const std::vector<std::span<const std::byte>>& parts);

/// By write_file. The same contents give the same bytes.
void write_safetensors(const std::string& path, const File& file);

/// "float32", ... as messages and options spell it.
const char* name_of(flash_kda_dtype dtype);

}  // namespace flash_kda::io

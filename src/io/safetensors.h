// Tensors in safetensors files (https://huggingface.co/docs/safetensors): 8 bytes of header length (little endian), a
// JSON header that names each tensor's dtype, shape and place, then the tensors' bytes without holes.
//
// A file is untrusted: every function here either returns something consistent or throws flash_kda::Error, whose
// message names the file, the tensor, what was got and what is accepted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
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

/// A file that is there whole or not at all: what `path` names is replaced by `write`, with its mode kept, and until
/// then by nothing. The file has no name before, so that an interruption leaves nothing; where the file system cannot
/// have such files, a hidden one beside `path`.
class OutputFile {
 public:
  /// Throws Error unless `path` can become an output: it is new or a regular file that may be written, in a folder that
  /// takes new files.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }

  /// The whole contents, `parts` behind one another. Once.
  void write(const std::vector<std::span<const std::byte>>& parts);

 private:
  /// What `make` of a temporary name that no file has returns; -1 and errno if that fails.
  template <typename Make>
  int with_new_name(const Make& make);
  [[noreturn]] void fail_to_write(const char* reason, size_t bytes) const;

  std::string path_;
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
  bool named_ = false;  ///< whether there is a file of the temporary name
};

/// The same contents give the same bytes.
void write_safetensors(OutputFile& output, const File& file);
void write_safetensors(const std::string& path, const File& file);

/// "float32", ... as messages and options spell it.
const char* name_of(flash_kda_dtype dtype);

}  // namespace flash_kda::io

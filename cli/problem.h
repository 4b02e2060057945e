// The arguments of one call of the operator, in host memory.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "cli/options.h"
#include "flash_kda/flash_kda.hpp"
#include "io/safetensors.h"

namespace flash_kda::cli {

/// The tensor arguments that a file may hold, by name, and where they go.
struct TensorArgument {
  const char* name;
  flash_kda_tensor flash_kda_forward_args::*member;
};
const std::vector<TensorArgument>& tensor_arguments();

struct Problem {
  std::string origin;  ///< the file, or what made it; named in messages
  std::map<std::string, io::Tensor> tensors;
  OperatorText text;

  /// Tensors that the sequences own, or B * T; 0 if q is missing. Call it after validation: it trusts cu_seqlens.
  int64_t tokens() const;
  /// N, as the tensors say.
  int64_t sequences() const;
  /// An extent of a tensor, 0 if it has no such dimension.
  int64_t extent(const std::string& name, size_t dimension) const;
};

/// Read a file whose tensors are arguments; flags in `text` override what its metadata says.
Problem read_problem(const std::string& path, const OperatorText& text);

}  // namespace flash_kda::cli

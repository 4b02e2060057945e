#include "cli/problem.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "api/error.h"

namespace flash_kda::cli {

const std::vector<TensorArgument>& tensor_arguments() {
  using Args = flash_kda_forward_args;
  static const std::vector<TensorArgument> arguments{{"q", &Args::q},
                                                     {"k", &Args::k},
                                                     {"v", &Args::v},
                                                     {"g", &Args::g},
                                                     {"beta", &Args::beta},
                                                     {"A_log", &Args::A_log},
                                                     {"dt_bias", &Args::dt_bias},
                                                     {"cu_seqlens", &Args::cu_seqlens},
                                                     {"initial_state", &Args::initial_state},
                                                     {"read_index", &Args::read_index},
                                                     {"has_initial_state", &Args::has_initial_state},
                                                     {"checkpoints", &Args::checkpoints}};
  return arguments;
}

int64_t Problem::extent(const std::string& name, size_t dimension) const {
  const auto found = tensors.find(name);
  return found != tensors.end() && dimension < found->second.shape.size() ? found->second.shape[dimension] : 0;
}

int64_t Problem::sequences() const {
  return tensors.contains("cu_seqlens") ? extent("cu_seqlens", 0) - 1 : extent("q", 0);
}

int64_t Problem::tokens() const {
  const auto cu = tensors.find("cu_seqlens");
  if (cu == tensors.end()) return extent("q", 0) * extent("q", 1);
  const std::byte* end = cu->second.data.data() + cu->second.data.size();
  if (cu->second.dtype == FLASH_KDA_I64) {
    int64_t last = 0;
    std::memcpy(&last, end - sizeof last, sizeof last);
    return last;
  }
  int32_t last = 0;
  std::memcpy(&last, end - sizeof last, sizeof last);
  return last;
}

Problem read_problem(const std::string& path, const OperatorText& text) {
  io::File file = io::read_safetensors(path);
  std::vector<const char*> accepted;
  for (const TensorArgument& argument : tensor_arguments()) accepted.push_back(argument.name);
  for (const auto& [name, tensor] : file.tensors) {
    if (std::find(accepted.begin(), accepted.end(), name) == accepted.end())
      fail(FLASH_KDA_ERROR_VALUE, "{}: tensor '{}': not an argument, accepted are {}", path, name,
           fmt::join(accepted, ", "));
    if (tensor.shape.empty() || tensor.shape.size() > FLASH_KDA_MAX_RANK)
      fail(FLASH_KDA_ERROR_VALUE, "{}: tensor '{}': got shape [{}], accepted is 1 to {} dimensions", path, name,
           fmt::join(tensor.shape, ", "), FLASH_KDA_MAX_RANK);
  }
  Problem problem{path, std::move(file.tensors), std::move(file.metadata)};
  for (const auto& [key, value] : text) problem.text[key] = value;
  return problem;
}

}  // namespace flash_kda::cli

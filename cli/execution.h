// One problem on one device: places it, runs it, brings the results back.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/device_memory.h"
#include "cli/options.h"
#include "cli/problem.h"
#include "flash_kda/flash_kda.hpp"
#include "io/safetensors.h"

namespace flash_kda::cli {

struct ExecutionOptions {
  Device device;
  int threads = 0;
  flash_kda_dtype out_type = FLASH_KDA_F32;
  flash_kda_dtype state_type = FLASH_KDA_F32;
  bool decode = false;  ///< flash_kda_decode instead; the problem's initial state has state_type
};

/// --out-dtype and --state-dtype.
void add_result_types(CLI::App& app, std::string& out_type, std::string& state_type);
/// The type named by `option`; if it is empty, the type of q.
flash_kda_dtype out_type_of(const std::string& option, const Problem& problem);

class Execution {
 public:
  /// Validates the call, then places the tensors. `problem` must outlive this object. Throws Error.
  Execution(const Problem& problem, const ExecutionOptions& options);

  /// "path=... key=value ... reason=..."
  const std::string& plan() const { return plan_; }
  /// "cpu/chunked"
  std::string path() const;
  /// Inputs read and outputs written by one call, each once.
  size_t bytes() const { return bytes_; }
  DeviceMemory& memory() { return *memory_; }

  /// Seconds of each call.
  std::vector<double> run(int repeats);
  /// out, final_state, and checkpoint_state if the problem has checkpoints.
  std::map<std::string, io::Tensor> results();

 private:
  struct Output {
    const char* name;
    flash_kda_tensor flash_kda_forward_args::*member;
    flash_kda_dtype dtype;
    std::vector<int64_t> shape;
  };

  std::vector<Output> outputs_;
  bool decode_;
  ForwardArgs args_;
  std::string plan_;
  size_t bytes_ = 0;
  std::unique_ptr<DeviceMemory> memory_;
};

}  // namespace flash_kda::cli

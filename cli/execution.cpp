#include "cli/execution.h"

#include "api/params.h"

namespace flash_kda::cli {

void add_result_types(CLI::App& app, std::string& out_type, std::string& state_type) {
  const auto accepted = one_of(names_of(float_types()));
  app.add_option("--out-dtype", out_type, "Type of out (default: the type of q)")->check(accepted);
  app.add_option("--state-dtype", state_type, "Type of final_state and checkpoint_state")
      ->check(accepted)
      ->capture_default_str();
}

flash_kda_dtype out_type_of(const std::string& option, const Problem& problem) {
  if (!option.empty()) return value_of(float_types(), option);
  const auto q = problem.tensors.find("q");
  return q == problem.tensors.end() ? FLASH_KDA_F32 : q->second.dtype;
}

namespace {

/// The decode call over the same tensors, in place on the final state.
DecodeArgs decode_of(const ForwardArgs& forward) {
  DecodeArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.g = forward.g;
  args.beta = forward.beta;
  args.A_log = forward.A_log;
  args.dt_bias = forward.dt_bias;
  args.cu_seqlens = forward.cu_seqlens;
  args.state = forward.final_state;
  args.read_index = forward.read_index;
  args.has_initial_state = forward.has_initial_state;
  args.out = forward.out;
  args.scale = forward.scale;
  args.lower_bound = forward.lower_bound;
  args.gate = forward.gate;
  args.beta_form = forward.beta_form;
  args.l2norm = forward.l2norm;
  args.check_cu_seqlens = forward.check_cu_seqlens;
  args.backend = forward.backend;
  args.device = forward.device;
  args.num_threads = forward.num_threads;
  args.workspace = forward.workspace;
  args.workspace_size = forward.workspace_size;
  return args;
}

}  // namespace

Execution::Execution(const Problem& problem, const ExecutionOptions& options) : decode_(options.decode) {
  apply(problem.text, problem.origin, args_);
  args_.backend = options.device.backend;
  args_.device = options.device.ordinal;
  args_.num_threads = options.threads;

  // Shapes alone first: nothing is allocated for a call that will be refused.
  const int64_t HV = problem.extent("v", 2), V = problem.extent("v", 3), K = problem.extent("q", 3);
  if (problem.tensors.contains("v"))
    outputs_.push_back({"out", &flash_kda_forward_args::out, options.out_type, problem.tensors.at("v").shape});
  outputs_.push_back(
      {"final_state", &flash_kda_forward_args::final_state, options.state_type, {problem.sequences(), HV, V, K}});
  if (problem.tensors.contains("checkpoints"))
    outputs_.push_back({"checkpoint_state",
                        &flash_kda_forward_args::checkpoint_state,
                        options.state_type,
                        {problem.extent("checkpoints", 0), HV, V, K}});
  for (const TensorArgument& argument : tensor_arguments())
    if (const auto found = problem.tensors.find(argument.name); found != problem.tensors.end())
      args_.*argument.member = tensor(nullptr, found->second.dtype, found->second.shape);
  for (const Output& output : outputs_) args_.*output.member = tensor(nullptr, output.dtype, output.shape);
  plan_ = decode_ ? describe(decode_of(args_)) : describe(args_);
  args_.workspace_size = decode_ ? workspace_size(decode_of(args_)) : workspace_size(args_);

  memory_ = make_device_memory(options.device);
  for (const TensorArgument& argument : tensor_arguments()) {
    const auto found = problem.tensors.find(argument.name);
    if (found == problem.tensors.end()) continue;
    const io::Buffer& data = found->second.data;
    (args_.*argument.member).data = const_cast<void*>(memory_->place(data.data(), data.size()));
    bytes_ += data.size();
  }
  for (const Output& output : outputs_) {
    auto size = static_cast<size_t>(size_of(output.dtype));
    for (int64_t extent : output.shape) size *= static_cast<size_t>(extent);
    (args_.*output.member).data = memory_->allocate(size);
    bytes_ += size;
  }
  if (args_.workspace_size > 0) args_.workspace = memory_->allocate(args_.workspace_size);
  if (decode_)
    memory_->copy(args_.final_state.data, args_.initial_state.data, problem.tensors.at("initial_state").data.size());

  // A file is untrusted: one call that looks at cu_seqlens on the device, too. It also loads the device's code.
  if (options.device.backend == FLASH_KDA_BACKEND_CUDA) {
    args_.check_cu_seqlens = 1;
    run(1);
    args_.check_cu_seqlens = 0;
  }
}

std::string Execution::path() const {
  const size_t begin = plan_.find("path=") + 5;
  return plan_.substr(begin, plan_.find(' ', begin) - begin);
}

std::vector<double> Execution::run(int repeats) {
  if (!decode_) return memory_->time(repeats, [&] { forward(args_); });
  const DecodeArgs args = decode_of(args_);
  return memory_->time(repeats, [&] { decode(args); });
}

std::map<std::string, io::Tensor> Execution::results() {
  std::map<std::string, io::Tensor> results;
  for (const Output& output : outputs_) {
    io::Tensor result(output.dtype, output.shape);
    memory_->download(result.data.data(), (args_.*output.member).data, result.data.size());
    results.emplace(output.name, std::move(result));
  }
  return results;
}

}  // namespace flash_kda::cli

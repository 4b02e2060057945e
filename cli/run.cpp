// flashkda run: tensors in, results out.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>

#include "api/error.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/problem.h"
#include "cli/progress.h"

namespace flash_kda::cli {
namespace {

struct Options {
  std::string input, output;
  OperatorText text;
  DeviceOptions device;
  std::string out_type, state_type = "float32";
  bool json = false;
};

ExitCode run(const Options& options) {
  std::optional<io::OutputFile> output;
  if (!options.output.empty()) {
    std::error_code code;
    if (std::filesystem::equivalent(options.input, options.output, code))
      fail(FLASH_KDA_ERROR_VALUE, "--output: got {}, which is the input, accepted is another file", options.output);
    output.emplace(options.output);
  }
  const Progress progress;
  progress.show("reading the input");
  const Problem problem = read_problem(options.input, options.text);
  const Device device = device_of(options.device.device);
  progress.show(fmt::format("running on {}", device.name()));
  Execution execution(problem, {device, options.device.threads, out_type_of(options.out_type, problem),
                                value_of(float_types(), options.state_type)});
  // The first call pays for page faults and for starting threads; the oracle is too slow to be run for that.
  if (device.backend != FLASH_KDA_BACKEND_REFERENCE) execution.run(1);
  const double seconds = execution.run(1).front();
  const int64_t tokens = problem.tokens();
  const double tokens_per_second = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  if (output) {
    progress.show("writing the results");
    io::write_safetensors(
        *output, {execution.results(),
                  {{"made_by", "flashkda run " + version()}, {"device", device.name()}, {"plan", execution.plan()}}});
  }
  progress.clear();
  if (options.json) {
    nlohmann::ordered_json json{{"input", options.input},   {"device", device.name()},
                                {"path", execution.path()}, {"plan", execution.plan()},
                                {"tokens", tokens},         {"sequences", problem.sequences()},
                                {"ms", seconds * 1e3},      {"tokens_per_s", tokens_per_second}};
    if (output) json["output"] = options.output;
    fmt::print("{}", text_of(json));
    return kOk;
  }
  fmt::print("device       {} ({})\n", device.name(), execution.path());
  fmt::print("tokens       {} in {} sequences, {} heads\n", tokens, problem.sequences(), problem.extent("v", 2));
  fmt::print("time         {:.3f} ms\n", seconds * 1e3);
  fmt::print("speed        {:.0f} tokens/s\n", tokens_per_second);
  if (output) fmt::print("written      {}\n", options.output);
  return kOk;
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Run the operator over the tensors of a file");
  command
      ->add_option("INPUT", options->input,
                   "Safetensors file with q, k [B,T,H,K], v [B,T,HV,V], g [B,T,HV,K], beta [B,T,HV] and, where wanted, "
                   "A_log [HV], dt_bias [HV,K], cu_seqlens [N+1], initial_state [N,HV,V,K], read_index [N], "
                   "has_initial_state [N], checkpoints [M,2]")
      ->required();
  command
      ->add_option("-o,--output", options->output,
                   "Write out [B,T,HV,V], final_state [N,HV,V,K] and checkpoint_state [M,HV,V,K] to this file")
      ->check(file_name());
  command->add_flag("--json", options->json, "Print a JSON object instead of text");
  add_device_options(*command, options->device, true);
  add_result_types(*command, options->out_type, options->state_type);
  add_operator_options(*command, options->text);
  command->footer(
      "Gate, lower_bound, beta_form, scale and l2norm come from the file's metadata (entries of these names),\n"
      "then from the flags. The time is that of one call after an untimed first one, with the tensors in place.\n"
      "Examples:\n"
      "  flashkda run in.safetensors -o out.safetensors\n"
      "  flashkda run in.safetensors --device cpu --threads 1 --json\n"
      "  flashkda run in.safetensors --gate softplus --beta-form twice_sigmoid");
  return {command, [options] { return run(*options); }};
}

}  // namespace flash_kda::cli

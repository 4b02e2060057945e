// flashkda check: a device against the fp64 recurrence.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/comparison.h"
#include "cli/execution.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/problem.h"
#include "cli/progress.h"

namespace flash_kda::cli {
namespace {

struct Options {
  std::string input;
  OperatorText text;
  DeviceOptions device;
  std::string out_type, state_type = "float32", tolerance;
  bool json = false;
};

/// The largest accepted error beyond rounding, output and state alike.
struct Tolerances {
  double ordinary;
  double
      parallel_keys;  ///< families F6 and F7: near-parallel and identical keys under a slow gate amplify every rounding
};
/// fp32 arithmetic on the CPU.
constexpr Tolerances kCpu{5e-6, 5e-5};
/// bf16 operands, fp32 accumulation and state on the GPU: 1.15 times the largest error that such arithmetic has in an
/// emulation with chunks of 16 tokens (F3 4.2e-3, F6 1.0e-2) and of 32 (F3 4.2e-3, F7 1.5e-2), rounded up to two
/// digits.
constexpr Tolerances kTwoKernel{5e-3, 1.2e-2}, kFused{5e-3, 1.8e-2};

double tolerance_of(const Options& options, const Execution& execution, const Problem& problem) {
  if (!options.tolerance.empty()) return value_of_number(options.tolerance);
  const std::string path = execution.path();
  const Tolerances& tolerances = path == "cuda/fused" ? kFused : path == "cuda/two_kernel" ? kTwoKernel : kCpu;
  const auto family = problem.text.find("family");
  const bool parallel = family != problem.text.end() && (family->second == "F6" || family->second == "F7");
  return parallel ? tolerances.parallel_keys : tolerances.ordinary;
}

nlohmann::ordered_json to_json(const Comparison& c, bool passed) {
  return {{"error", c.error},
          {"error_beyond_rounding", c.error_beyond_rounding},
          {"worst", {{"at", c.worst}, {"result", c.worst_result}, {"reference", c.worst_reference}}},
          {"nan", c.nan},
          {"inf", c.inf},
          {"mismatched", c.mismatched},
          {"elements", c.elements},
          {"passed", passed}};
}

void print(const std::string& name, const Comparison& c, bool passed) {
  fmt::print("{:<16} {}: relative error {:.2e}, beyond rounding {:.2e}\n", name, passed ? "ok" : "FAILED", c.error,
             c.error_beyond_rounding);
  if (!c.worst.empty())
    fmt::print("{:<16} worst at [{}]: got {:.9g}, reference {:.9g}\n", "", fmt::join(c.worst, ", "), c.worst_result,
               c.worst_reference);
  fmt::print("{:<16} {} elements, {} NaN, {} Inf, {} elements finite on one side alone\n", "", c.elements, c.nan, c.inf,
             c.mismatched);
}

ExitCode check(const Options& options) {
  const Progress progress;
  progress.show("reading the input");
  const Problem problem = read_problem(options.input, options.text);
  const Device device = device_of(options.device.device);
  progress.show(fmt::format("running on {}", device.name()));
  Execution execution(problem, {device, options.device.threads, out_type_of(options.out_type, problem),
                                value_of(float_types(), options.state_type)});
  const double tolerance = tolerance_of(options, execution, problem);
  execution.run(1);
  progress.show("running the fp64 reference");
  Execution oracle(problem, {{FLASH_KDA_BACKEND_REFERENCE, 0}, 0, FLASH_KDA_F64, FLASH_KDA_F64});
  oracle.run(1);
  progress.show("comparing");
  const std::map<std::string, io::Tensor> references = oracle.results();
  std::map<std::string, Comparison> comparisons;
  for (const auto& [name, result] : execution.results())
    comparisons.emplace(name, compare(result, references.at(name)));
  progress.clear();

  bool passed = true;
  nlohmann::ordered_json json{
      {"input", options.input}, {"device", device.name()}, {"plan", execution.plan()}, {"tolerance", tolerance}};
  if (!options.json) {
    fmt::print("{:<16} {}\n", "device", device.name());
    fmt::print("{:<16} {}\n", "plan", execution.plan());
    fmt::print("{:<16} {:.2e} beyond the rounding of the results' types\n", "tolerance", tolerance);
  }
  for (const auto& [name, comparison] : comparisons) {
    const bool within = comparison.within(tolerance);
    passed = passed && within;
    if (options.json)
      json[name] = to_json(comparison, within);
    else
      print(name, comparison, within);
  }
  if (options.json) {
    json["passed"] = passed;
    fmt::print("{}", text_of(json));
  } else {
    fmt::print("{:<16} {}\n", "verdict", passed ? "ok" : "FAILED");
  }
  return passed ? kOk : kCheckFailed;
}

}  // namespace

Command add_check(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("check", "Compare a device with the fp64 recurrence");
  command->add_option("INPUT", options->input, "Safetensors file, as for 'run'")->required();
  command
      ->add_option("--tolerance", options->tolerance, "Largest accepted error beyond rounding, instead of the default")
      ->check(number(0, 1e3, "a number from 0 to 1000"));
  command->add_flag("--json", options->json, "Print a JSON object instead of text");
  add_device_options(*command, options->device, false);
  add_result_types(*command, options->out_type, options->state_type);
  add_operator_options(*command, options->text);
  command->footer(fmt::format(
      "The error of a tensor is ||result - reference|| / ||reference|| (Frobenius). What is compared with the\n"
      "tolerance is the part that the rounding of the result's type does not explain,\n"
      "  sqrt(||result - reference||^2 - ||rounded reference - reference||^2) / ||reference||,\n"
      "so that one tolerance serves float32 and bfloat16 results. NaN and Inf are counted apart; an element that is\n"
      "finite on one side alone fails the check. Tolerances: CPU {:.0e}, GPU {:.0e}; inputs whose metadata\n"
      "says family F6 or F7 (near-parallel keys) CPU {:.0e}, GPU {:.1e}, {:.1e} by the fused kernel.\n"
      "Exit code 0 if every result is within the tolerance, 1 if not.\n"
      "Examples:\n"
      "  flashkda check in.safetensors --device cpu\n"
      "  flashkda check in.safetensors --out-dtype float32 --json",
      kCpu.ordinary, kTwoKernel.ordinary, kCpu.parallel_keys, kTwoKernel.parallel_keys, kFused.parallel_keys));
  return {command, [options] { return check(*options); }};
}

}  // namespace flash_kda::cli

// flashkda generate: reproducible inputs.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "cli/commands.h"
#include "cli/generator.h"
#include "cli/options.h"
#include "cli/progress.h"

namespace flash_kda::cli {
namespace {

struct Options {
  std::string output;
  ShapeOptions shape;
  std::string family = "F1", dtype = "bfloat16", initial_state = "none";
  std::string gate_strength = "0";
  uint64_t seed = 0;
};

ExitCode generate(const Options& options) {
  io::OutputFile output(options.output);
  GeneratorOptions generator{shape_of(options.shape),
                             options.family,
                             static_cast<float>(value_of_number(options.gate_strength)),
                             value_of(float_types(), options.dtype),
                             {},
                             options.seed};
  if (options.initial_state != "none") generator.initial_state_dtype = value_of(float_types(), options.initial_state);
  const Progress progress;
  progress.show("generating");
  Problem problem = cli::generate(generator);
  io::File file{std::move(problem.tensors), std::move(problem.text)};
  file.metadata["made_by"] = "flashkda generate " + version();
  file.metadata["gate_strength"] = options.gate_strength;
  file.metadata["seed"] = std::to_string(options.seed);
  progress.show("writing");
  io::write_safetensors(output, file);
  progress.clear();
  fmt::print("written      {}\n", options.output);
  return kOk;
}

}  // namespace

Command add_generate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Make reproducible inputs");
  std::vector<std::string> state_types = names_of(float_types());
  state_types.insert(state_types.begin(), "none");
  command->add_option("OUTPUT", options->output, "Safetensors file to write")->required()->check(file_name());
  add_shape_options(*command, options->shape);
  command->add_option("--family", options->family, "What the inputs look like, see below")
      ->check(one_of(family_names()))
      ->capture_default_str();
  command
      ->add_option("--gate-strength", options->gate_strength,
                   "Added to the raw gate g: below 0 the state decays more slowly, above 0 faster")
      ->check(number(-1e4, 1e4, "a number from -10000 to 10000"))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of q, k, v, g and beta")
      ->check(one_of(names_of(float_types())))
      ->capture_default_str();
  command->add_option("--initial-state", options->initial_state, "Type of an initial state, or none")
      ->check(one_of(state_types))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Another seed gives other numbers")
      ->check(whole_number(0, INT64_MAX))
      ->capture_default_str();
  std::string text =
      "Families (z, b standard normal; A_log = dt_bias = 0, g = z and beta = b unless said; all but one bounded "
      "gates):\n";
  for (const Family& family : families()) text += fmt::format("  {:<9} {}\n", family.name, family.description);
  command->footer(text +
                  "The same options give the same bytes on every machine.\n"
                  "Examples:\n"
                  "  flashkda generate in.safetensors --tokens 8192 --heads 8 --family F3\n"
                  "  flashkda generate in.safetensors --lengths 1300,547,2048 --initial-state float32\n"
                  "  flashkda generate in.safetensors --heads 4 --value-heads 8 --value-dim 64 --dtype float32");
  return {command, [options] { return generate(*options); }};
}

}  // namespace flash_kda::cli

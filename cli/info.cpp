// flashkda info: what this build and machine can do, and which path a shape takes.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"

namespace flash_kda::cli {
namespace {

struct Options {
  DeviceOptions device;
  ShapeOptions shape;
  OperatorText text;
  std::string dtype = "bfloat16", state_type = "float32";
  bool json = false;
};

/// The plan of a forward call of this shape; no tensor is needed for it.
std::string plan_of(const Options& options, const Device& device, const Shape& shape) {
  const flash_kda_dtype type = value_of(float_types(), options.dtype);
  const int64_t T = shape.T, H = shape.H, HV = shape.HV, K = shape.K, V = shape.V;
  ForwardArgs args;
  apply(options.text, "options", args);
  args.backend = device.backend;
  args.device = device.ordinal;
  args.num_threads = options.device.threads;
  args.q = args.k = tensor(nullptr, type, {1, T, H, K});
  args.v = args.out = tensor(nullptr, type, {1, T, HV, V});
  args.g = tensor(nullptr, type, {1, T, HV, K});
  args.beta = tensor(nullptr, type, {1, T, HV});
  args.final_state = tensor(nullptr, value_of(float_types(), options.state_type), {shape.sequences(), HV, V, K});
  if (!shape.lengths.empty()) args.cu_seqlens = tensor(nullptr, FLASH_KDA_I32, {shape.sequences() + 1});
  return describe(args);
}

ExitCode print_info(const Options& options) {
  const nlohmann::ordered_json machine = nlohmann::ordered_json::parse(info());
  const Device device = device_of(options.device.device);
  const Shape shape = shape_of(options.shape);
  const std::string plan = plan_of(options, device, shape);
  if (options.json) {
    nlohmann::ordered_json json = machine;
    json["forward"] = {{"device", device.name()}, {"plan", plan}};
    fmt::print("{}", text_of(json));
    return kOk;
  }
  const auto text = [](const nlohmann::ordered_json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  fmt::print("flashkda {}\n", text(machine.at("version")));
  for (const char* section : {"build", "cpu"})
    for (const auto& [key, value] : machine.at(section).items())
      fmt::print("{:<6} {:<20} {}\n", section, key, text(value));
  const auto& cuda = machine.at("cuda");
  if (cuda.contains("why")) fmt::print("cuda   unavailable          {}\n", text(cuda.at("why")));
  for (const auto& gpu : cuda.at("devices"))
    fmt::print("cuda   {:<20} {}, compute capability {}, {} multiprocessors{}\n", text(gpu.at("device")),
               text(gpu.at("name")), text(gpu.at("compute_capability")), text(gpu.at("multiprocessors")),
               gpu.at("usable").get<bool>() ? "" : ": " + text(gpu.at("why")));
  fmt::print("\nforward/H{}/{} K={} V={} {} on {}:\n  {}\n", shape.HV, shape.lengths_name(), shape.K, shape.V,
             options.dtype, device.name(), plan);
  return kOk;
}

}  // namespace

Command add_info(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("info", "Version, build, devices, and the path that a shape takes and why");
  command->add_flag("--json", options->json, "Print a JSON object instead of text");
  add_device_options(*command, options->device, true);
  add_shape_options(*command, options->shape);
  command->add_option("--dtype", options->dtype, "Type of the inputs and the output")
      ->check(one_of(names_of(float_types())))
      ->capture_default_str();
  command->add_option("--state-dtype", options->state_type, "Type of the final state")
      ->check(one_of(names_of(float_types())))
      ->capture_default_str();
  add_operator_options(*command, options->text);
  command->footer(
      "Examples:\n"
      "  flashkda info\n"
      "  flashkda info --device cuda --heads 96 --lengths 1300,547,2048,963,271,3063\n"
      "  flashkda info --device cpu --gate softplus --key-dim 64 --json");
  return {command, [options] { return print_info(*options); }};
}

}  // namespace flash_kda::cli

// flashkda bench: times, as a table and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/error.h"
#include "cli/commands.h"
#include "cli/execution.h"
#include "cli/generator.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/peak.h"
#include "cli/progress.h"

namespace flash_kda::cli {
namespace {

struct Options {
  DeviceOptions device;
  ShapeOptions shape;
  std::string operation = "forward", gate = "random", dtype = "bfloat16", json;
  int warmup = 2;
  int repeats = 10;
};

/// The gate part of a benchmark's name, and the family of inputs it stands for.
const Choices<std::string>& gate_names() {
  static const Choices<std::string> choices{
      {"random", "F1"}, {"slow", "F3"}, {"mixed", "F5"}, {"softplus", "softplus"}};
  return choices;
}

struct Case {
  std::string operation;
  Shape shape;
  std::string gate;

  std::string name() const {
    std::string heads = fmt::format("H{}", shape.H);
    if (shape.HV != shape.H) heads += fmt::format("-HV{}", shape.HV);
    if (shape.K != 128 || shape.V != 128) heads += fmt::format("-K{}-V{}", shape.K, shape.V);
    if (operation == "forward") return fmt::format("forward/{}/{}/{}", heads, shape.lengths_name(), gate);
    const bool single = shape.T == shape.sequences();
    const std::string rows = single ? fmt::format("B{}", shape.T) : shape.lengths_name();
    return fmt::format("decode/{}/{}/fp32{}", heads, rows, gate == "random" ? "" : "/" + gate);
  }
};

/// What is timed when no shape and no gate is asked for. A new benchmark is one row.
std::vector<Case> default_cases(const Device& device) {
  struct Row {
    const char* operation;
    int64_t heads;
    int64_t tokens;
    const char* lengths;
    const char* gate;
  };
  constexpr const char* kRagged = "1300,547,2048,963,271,3063";
  static const std::vector<Row> cpu{{"forward", 8, 2048, "", "random"},   {"forward", 8, 2048, "", "slow"},
                                    {"forward", 8, 2048, "", "mixed"},    {"forward", 8, 2048, "", "softplus"},
                                    {"forward", 8, 0, kRagged, "random"}, {"decode", 12, 0, "64x1", "random"}};
  static const std::vector<Row> cuda{{"forward", 96, 8192, "", "random"},    {"forward", 96, 8192, "", "slow"},
                                     {"forward", 96, 8192, "", "mixed"},     {"forward", 96, 0, kRagged, "random"},
                                     {"forward", 96, 0, "8x1024", "random"}, {"forward", 12, 65536, "", "random"}};
  std::vector<Case> cases;
  for (const Row& row : device.backend == FLASH_KDA_BACKEND_CUDA ? cuda : cpu) {
    ShapeOptions shape;
    shape.heads = row.heads;
    shape.tokens = row.tokens;
    shape.lengths = row.lengths;
    cases.push_back({row.operation, shape_of(shape), row.gate});
  }
  return cases;
}

struct Timing {
  std::string name, path;
  int threads = 0;               ///< CPU
  double median = 0, least = 0;  ///< seconds
  int64_t tokens = 0;
  double us_per_token_head = 0;
  double peak_share = 0;             ///< CPU: of the measured fp32 peak
  double copy = 0;                   ///< GPU: seconds to copy as many bytes as the call reads and writes
  double copy_bytes_per_second = 0;  ///< GPU: bytes read plus bytes written
};

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

Timing measure(const Options& options, const Device& device, const Case& c, const Problem& problem, int threads,
               double peak) {
  Execution execution(
      problem, {device, threads, value_of(float_types(), options.dtype), FLASH_KDA_F32, c.operation == "decode"});
  if (options.warmup > 0) execution.run(options.warmup);
  const std::vector<double> seconds = execution.run(options.repeats);
  Timing timing;
  timing.name = c.name();
  timing.path = execution.path();
  timing.median = median_of(seconds);
  timing.least = *std::min_element(seconds.begin(), seconds.end());
  timing.tokens = c.shape.T;
  const auto token_heads = static_cast<double>(c.shape.T * c.shape.HV);
  timing.us_per_token_head = timing.median * 1e6 / token_heads;
  if (device.backend == FLASH_KDA_BACKEND_CUDA) {
    const size_t half = (execution.bytes() + 1) / 2;  // a copy reads half of the bytes and writes half
    DeviceMemory& memory = execution.memory();
    void* from = memory.allocate(half);
    void* to = memory.allocate(half);
    const auto copy = [&] { memory.copy(to, from, half); };
    memory.time(2, copy);
    timing.copy = median_of(memory.time(options.repeats, copy));
    timing.copy_bytes_per_second = 2.0 * static_cast<double>(half) / timing.copy;
  } else {
    timing.threads = threads;
    // The three products of a token with the state; the rest of the work is left out.
    const double operations = 6.0 * static_cast<double>(c.shape.K * c.shape.V) * token_heads;
    timing.peak_share = operations / timing.median / peak;
  }
  return timing;
}

nlohmann::ordered_json to_json(const Timing& t, bool gpu) {
  nlohmann::ordered_json json{{"name", t.name},
                              {"path", t.path},
                              {"ms", t.median * 1e3},
                              {"min_ms", t.least * 1e3},
                              {"us_per_token_head", t.us_per_token_head},
                              {"tokens_per_s", static_cast<double>(t.tokens) / t.median}};
  if (gpu) {
    json["floor_ms"] = t.copy * 1e3;
  } else {
    json["threads"] = t.threads;
    json["peak_share"] = t.peak_share;
  }
  return json;
}

void print_header(bool gpu) {
  fmt::print("{:<34} {:<18} {:>10} {:>10} {:>14} {:>12} {:>8}", "case", "path", "median ms", "min ms", "us/token/head",
             "tokens/s", gpu ? "x copy" : "threads");
  if (!gpu) fmt::print(" {:>8}", "% peak");
  fmt::print("\n");
}

void print_row(const Timing& t, bool gpu) {
  fmt::print("{:<34} {:<18} {:>10.3f} {:>10.3f} {:>14.4f} {:>12.0f} ", t.name, t.path, t.median * 1e3, t.least * 1e3,
             t.us_per_token_head, static_cast<double>(t.tokens) / t.median);
  if (gpu)
    fmt::print("{:>8.2f}\n", t.median / t.copy);
  else
    fmt::print("{:>8} {:>8.1f}\n", t.threads, t.peak_share * 100);
  std::fflush(stdout);
}

/// Thread counts to time: those asked for, or one and all.
std::vector<int> thread_counts(const Options& options, const Device& device) {
  if (device.backend == FLASH_KDA_BACKEND_CUDA || options.device.threads > 0) return {options.device.threads};
  const int all = nlohmann::json::parse(info()).at("cpu").at("threads").get<int>();
  return all > 1 ? std::vector<int>{1, all} : std::vector<int>{1};
}

ExitCode bench(const Options& options, bool own_case) {
  const Device device = device_of(options.device.device);
  const bool gpu = device.backend == FLASH_KDA_BACKEND_CUDA;
  const std::vector<Case> cases =
      own_case ? std::vector<Case>{{options.operation, shape_of(options.shape), options.gate}} : default_cases(device);
  const std::vector<int> threads = thread_counts(options, device);
  if (std::any_of(cases.begin(), cases.end(), [](const Case& c) { return c.shape.T == 0; }))
    fail(FLASH_KDA_ERROR_VALUE, "--tokens: got 0, accepted by bench is 1 or more");
  // Before the first case: a name that cannot be written, and a device that is not there, are told at once.
  std::optional<io::OutputFile> output;
  if (!options.json.empty()) output.emplace(options.json);
  const std::string device_name = make_device_memory(device)->device_name();

  const Progress progress;
  std::map<int, double> peaks;
  if (!gpu) {
    progress.show("measuring the fp32 peak");
    for (int count : threads) peaks[count] = measure_fp32_peak(count);
    progress.clear();
  }
  fmt::print("{}: {}\n", device.name(), device_name);
  for (const auto& [count, peak] : peaks)
    fmt::print("fp32 peak with {} thread{}: {:.0f} GFLOP/s, measured with a loop of fused multiply-adds\n", count,
               count == 1 ? "" : "s", peak * 1e-9);
  print_header(gpu);

  std::vector<Timing> timings;
  for (size_t i = 0; i < cases.size(); ++i) {
    progress.show(fmt::format("[{}/{}] {}", i + 1, cases.size(), cases[i].name()));
    const Problem problem = generate({cases[i].shape, value_of(gate_names(), cases[i].gate), 0,
                                      value_of(float_types(), options.dtype), FLASH_KDA_F32, 0});
    for (int count : threads) {
      timings.push_back(measure(options, device, cases[i], problem, count, gpu ? 0 : peaks.at(count)));
      progress.clear();
      print_row(timings.back(), gpu);
    }
  }
  if (!output) return kOk;

  nlohmann::ordered_json json{
      {"device", device_name}, {"info", nlohmann::ordered_json::parse(info())}, {"dtype", options.dtype}};
  if (gpu)
    json["copy_tb_s"] = std::max_element(timings.begin(), timings.end(),
                                         [](const Timing& a, const Timing& b) { return a.copy < b.copy; })
                            ->copy_bytes_per_second *
                        1e-12;
  for (const auto& [count, peak] : peaks) json["fp32_peak_gflops"][std::to_string(count)] = peak * 1e-9;
  for (const Timing& timing : timings) json["benchmarks"].push_back(to_json(timing, gpu));
  const std::string text = text_of(json);
  output->write({std::as_bytes(std::span(text))});
  return kOk;
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("bench", "Time the operator: a table, and JSON");
  add_device_options(*command, options->device, false);
  add_shape_options(*command, options->shape);
  command
      ->add_option("--operator", options->operation, "decode takes at most 8 tokens a sequence, in place on its state")
      ->check(one_of({"forward", "decode"}))
      ->capture_default_str();
  command
      ->add_option("--gate", options->gate, "Kind of inputs: families F1, F3, F5 and softplus of 'flashkda generate'")
      ->check(one_of(names_of(gate_names())))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of the inputs and the output; states are float32")
      ->check(one_of(names_of(float_types())))
      ->capture_default_str();
  command->add_option("--warmup", options->warmup, "Untimed calls first")
      ->check(whole_number(0, 1000))
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Timed calls")
      ->check(whole_number(1, 10000))
      ->capture_default_str();
  command->add_option("--json", options->json, "Also write a JSON object to this file")->check(file_name());
  command->footer(
      "Without --operator, --gate and shape options it times a default set of cases. Names are\n"
      "operator/heads/lengths/gate, of decode operator/heads/sequences/state. Every state is float32.\n"
      "CPU: '% peak' is the share of the fp32 peak, which is measured first with a short loop of fused multiply-adds\n"
      "on as many threads; it counts 6 K V operations a token and head, the three products with the state. Without\n"
      "--threads each case is timed on one thread and on all.\n"
      "GPU: times are between events on the device; 'x copy' is the ratio to a device-to-device copy that moves as\n"
      "many bytes as the call reads and writes.\n"
      "Other implementations are compared from Python only, where they live: see bench/gpu_record.py in the sources.\n"
      "Examples:\n"
      "  flashkda bench --device cpu\n"
      "  flashkda bench --tokens 2048 --heads 8 --gate slow --threads 1\n"
      "  flashkda bench --device cpu --operator decode --heads 12 --lengths 64x1\n"
      "  flashkda bench --device cuda --heads 96 --lengths 1300,547,2048,963,271,3063 --json bench.json");
  const auto own_case = [command] {
    for (const char* flag :
         {"--operator", "--tokens", "--heads", "--value-heads", "--key-dim", "--value-dim", "--lengths", "--gate"})
      if (command->get_option(flag)->count() > 0) return true;
    return false;
  };
  return {command, [options, own_case] { return bench(*options, own_case()); }};
}

}  // namespace flash_kda::cli

// Options that several subcommands share: how they are spelled, checked, and what they mean.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "flash_kda/flash_kda.hpp"

namespace flash_kda::cli {

// ---- Checks: each says what was given and what is accepted ----

CLI::Validator whole_number(int64_t first, int64_t last);
CLI::Validator number(double first, double last, const std::string& accepted);
CLI::Validator one_of(const std::vector<std::string>& words);
CLI::Validator file_name();

/// The value of a text that number() has accepted.
double value_of_number(const std::string& text);

/// The names of an option with a fixed set of values, in the order of its help text.
template <typename Value>
using Choices = std::vector<std::pair<std::string, Value>>;

template <typename Value>
std::vector<std::string> names_of(const Choices<Value>& choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  return names;
}

const Choices<flash_kda_gate>& gates();
const Choices<flash_kda_beta>& beta_forms();
const Choices<flash_kda_dtype>& float_types();  ///< those of inputs, outputs and states

/// The value of a name that one_of(names_of(choices)) has accepted.
template <typename Value>
Value value_of(const Choices<Value>& choices, const std::string& name) {
  for (const auto& choice : choices)
    if (choice.first == name) return choice.second;
  throw Error(FLASH_KDA_ERROR_INTERNAL, "no such choice: " + name);
}

// ---- Devices ----

struct Device {
  flash_kda_backend backend = FLASH_KDA_BACKEND_CPU;
  int ordinal = 0;  ///< of a GPU

  std::string name() const;  ///< "cpu", "cuda:0", "reference"
};

/// "auto" (the first GPU that flash_kda_info calls usable, else the CPU), "cpu", "cuda", "cuda:1", "reference".
Device device_of(const std::string& text);

/// --device and --threads.
struct DeviceOptions {
  std::string device = "auto";
  int threads = 0;
};
void add_device_options(CLI::App& app, DeviceOptions& options, bool with_reference);

// ---- Options of the operator ----

/// gate, beta_form, lower_bound, scale, l2norm as text. A file's metadata holds them under these names; flags come on
/// top.
using OperatorText = std::map<std::string, std::string>;

/// --gate, --beta-form, --lower-bound, --scale, --l2norm; only those given enter `text`.
void add_operator_options(CLI::App& app, OperatorText& text);

/// Set the members of `args` that `text` names; the others keep their defaults. `origin` is named when a value is
/// refused.
void apply(const OperatorText& text, const std::string& origin, flash_kda_forward_args& args);

// ---- Shapes ----

struct ShapeOptions {
  int64_t tokens = 1024;
  int64_t heads = 4;
  int64_t value_heads = 0;  ///< 0: as many as heads
  int64_t key_dim = 128;
  int64_t value_dim = 128;
  std::string lengths;  ///< "1300,547,2048" or "8x1024"; empty: one sequence of `tokens`
};
void add_shape_options(CLI::App& app, ShapeOptions& options);

/// What ShapeOptions come to.
struct Shape {
  int64_t T = 0;
  int64_t H = 0;
  int64_t HV = 0;
  int64_t K = 0;
  int64_t V = 0;
  std::vector<int64_t> lengths;  ///< of a packed batch; empty: one sequence of T tokens

  int64_t sequences() const { return lengths.empty() ? 1 : static_cast<int64_t>(lengths.size()); }
  /// The lengths part of a benchmark's name: "fixed8192", "8x1024", "ragged8192".
  std::string lengths_name() const;
};
Shape shape_of(const ShapeOptions& options);

}  // namespace flash_kda::cli

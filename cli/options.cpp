#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <type_traits>

#include "api/error.h"

namespace flash_kda::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;

/// The whole of `text` as a decimal number. Whole numbers have no leading zero: CLI11, which reads them once more,
/// would take it for an octal one.
template <typename Number>
std::optional<Number> parse(std::string_view text) {
  if (std::is_integral_v<Number> && text.size() > 1 && text.front() == '0') return std::nullopt;
  Number value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <typename Number>
CLI::Validator in_range(Number first, Number last, const std::string& accepted) {
  return CLI::Validator(
      [=](std::string& text) {
        const auto value = parse<Number>(text);
        if (value && *value >= first && *value <= last) return std::string();
        return fmt::format("got {}, accepted is {}", text, accepted);
      },
      "");
}

/// Sequence lengths, or nothing if `text` is malformed.
std::optional<std::vector<int64_t>> parse_lengths(std::string_view text) {
  constexpr int64_t kMaxSequences = 1 << 20;
  const auto length = [](std::string_view word) {
    const auto value = parse<int64_t>(word);
    return value && *value >= 0 && *value <= kMaxTokens / kMaxSequences ? value : std::nullopt;
  };
  if (const size_t x = text.find('x'); x != std::string_view::npos) {
    const auto count = parse<int64_t>(text.substr(0, x)), each = length(text.substr(x + 1));
    if (!count || *count < 1 || *count > kMaxSequences || !each) return std::nullopt;
    return std::vector<int64_t>(static_cast<size_t>(*count), *each);
  }
  std::vector<int64_t> lengths;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto value = length(text.substr(begin, end - begin));
    if (!value || static_cast<int64_t>(lengths.size()) == kMaxSequences) return std::nullopt;
    lengths.push_back(*value);
    begin = end + 1;
  }
  return lengths;
}

/// A text option that enters `text` under `key` when it is given.
void add_operator_option(CLI::App& app, OperatorText& text, const std::string& flag, const std::string& key,
                         const std::string& help, const CLI::Validator& check) {
  app.add_option_function<std::string>(
         flag, [&text, key](const std::string& value) { text[key] = value; }, help)
      ->check(check)
      ->group("Operator");
}

/// The check of the value of `key`, for flags and metadata alike.
CLI::Validator check_of(const std::string& key) {
  if (key == "gate") return one_of(names_of(gates()));
  if (key == "beta_form") return one_of(names_of(beta_forms()));
  if (key == "l2norm") return one_of({"on", "off"});
  if (key == "lower_bound") return number(-5, -FLT_MIN, "a number x with -5 <= x < 0");
  return number(-FLT_MAX, FLT_MAX, "a finite number");
}

}  // namespace

CLI::Validator whole_number(int64_t first, int64_t last) {
  return in_range<int64_t>(first, last, fmt::format("a whole number from {} to {}", first, last));
}

CLI::Validator number(double first, double last, const std::string& accepted) {
  return in_range<double>(first, last, accepted);
}

CLI::Validator file_name() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("got an empty name, accepted is the name of a file") : std::string();
      },
      "");
}

double value_of_number(const std::string& text) { return parse<double>(text).value(); }

CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("got {}, accepted is {}", text, fmt::join(words, ", "));
      },
      fmt::format("{}", fmt::join(words, "|")));
}

const Choices<flash_kda_gate>& gates() {
  static const Choices<flash_kda_gate> choices{
      {"bounded", FLASH_KDA_GATE_BOUNDED}, {"softplus", FLASH_KDA_GATE_SOFTPLUS}, {"log", FLASH_KDA_GATE_LOG}};
  return choices;
}

const Choices<flash_kda_beta>& beta_forms() {
  static const Choices<flash_kda_beta> choices{{"logits", FLASH_KDA_BETA_LOGITS},
                                               {"probabilities", FLASH_KDA_BETA_PROBABILITIES},
                                               {"twice_sigmoid", FLASH_KDA_BETA_TWICE_SIGMOID}};
  return choices;
}

const Choices<flash_kda_dtype>& float_types() {
  static const Choices<flash_kda_dtype> choices{
      {"bfloat16", FLASH_KDA_BF16}, {"float16", FLASH_KDA_F16}, {"float32", FLASH_KDA_F32}};
  return choices;
}

std::string Device::name() const {
  switch (backend) {
    case FLASH_KDA_BACKEND_CUDA:
      return fmt::format("cuda:{}", ordinal);
    case FLASH_KDA_BACKEND_REFERENCE:
      return "reference";
    default:
      return "cpu";
  }
}

Device device_of(const std::string& text) {
  if (text == "cpu") return {FLASH_KDA_BACKEND_CPU, 0};
  if (text == "reference") return {FLASH_KDA_BACKEND_REFERENCE, 0};
  if (text.starts_with("cuda"))
    return {FLASH_KDA_BACKEND_CUDA, text == "cuda" ? 0 : parse<int>(text.substr(5)).value()};
  const nlohmann::json machine = nlohmann::json::parse(info());
  for (const auto& gpu : machine.at("cuda").at("devices"))
    if (gpu.at("usable").get<bool>()) return {FLASH_KDA_BACKEND_CUDA, gpu.at("device").get<int>()};
  return {FLASH_KDA_BACKEND_CPU, 0};
}

void add_device_options(CLI::App& app, DeviceOptions& options, bool with_reference) {
  const std::string accepted = with_reference ? "auto, cpu, cuda, cuda:N or reference" : "auto, cpu, cuda or cuda:N";
  const CLI::Validator check(
      [=](std::string& text) {
        const bool gpu = text.starts_with("cuda:") && parse<uint16_t>(text.substr(5)).has_value();
        if (gpu || text == "auto" || text == "cpu" || text == "cuda" || (with_reference && text == "reference"))
          return std::string();
        return fmt::format("got {}, accepted is {}", text, accepted);
      },
      "");
  app.add_option("--device", options.device, accepted + "; auto is a GPU if one is usable, else the CPU")
      ->check(check)
      ->capture_default_str();
  app.add_option(
         "--threads", options.threads,
         "CPU threads, at most 1024; 0 is what OpenMP would take: OMP_NUM_THREADS, or as many as the machine has")
      ->check(whole_number(0, 1024))
      ->capture_default_str();
}

void add_operator_options(CLI::App& app, OperatorText& text) {
  add_operator_option(app, text, "--gate", "gate", "How the decay follows from g", check_of("gate"));
  add_operator_option(app, text, "--lower-bound", "lower_bound", "Of the bounded gate, -5 <= x < 0 (default -5)",
                      check_of("lower_bound"));
  add_operator_option(app, text, "--beta-form", "beta_form", "What beta holds", check_of("beta_form"));
  add_operator_option(app, text, "--scale", "scale", "Factor of the output (default 1/sqrt(K))", check_of("scale"));
  add_operator_option(app, text, "--l2norm", "l2norm", "Normalise q and k (default on)", check_of("l2norm"));
}

void apply(const OperatorText& text, const std::string& origin, flash_kda_forward_args& args) {
  for (const char* key : {"gate", "beta_form", "lower_bound", "scale", "l2norm"}) {
    const auto found = text.find(key);
    if (found == text.end()) continue;
    const std::string& value = found->second;
    if (const std::string wrong = check_of(key)(value); !wrong.empty())
      fail(FLASH_KDA_ERROR_VALUE, "{}: {}: {}", origin, key, wrong);
    if (found->first == "gate") args.gate = value_of(gates(), value);
    if (found->first == "beta_form") args.beta_form = value_of(beta_forms(), value);
    if (found->first == "lower_bound") args.lower_bound = static_cast<float>(value_of_number(value));
    if (found->first == "scale") args.scale = static_cast<float>(value_of_number(value));
    if (found->first == "l2norm") args.l2norm = value == "on" ? 1 : 0;
  }
}

void add_shape_options(CLI::App& app, ShapeOptions& options) {
  constexpr int64_t kMaxHeads = 1 << 20, kMaxDim = 256;
  const auto add = [&](const char* flag, int64_t& value, const char* help, int64_t first, int64_t last) {
    return app.add_option(flag, value, help)->check(whole_number(first, last))->capture_default_str()->group("Shape");
  };
  CLI::Option* tokens = add("--tokens", options.tokens, "T, tokens of one sequence", 0, kMaxTokens);
  add("--heads", options.heads, "H, query and key heads", 1, kMaxHeads);
  add("--value-heads", options.value_heads, "HV, a multiple of H; 0 is H", 0, kMaxHeads);
  add("--key-dim", options.key_dim, "K, of q, k and g", 1, kMaxDim);
  add("--value-dim", options.value_dim, "V, of v and the output", 1, kMaxDim);
  app.add_option("--lengths", options.lengths, "Packed sequences instead of one: 1300,547,2048 or 8x1024")
      ->check(CLI::Validator(
          [](std::string& text) {
            if (parse_lengths(text)) return std::string();
            return fmt::format(
                "got {}, accepted are lengths such as 1300,547,2048 or 8x1024 (at most 2^20 of at most 2^20 tokens)",
                text);
          },
          ""))
      ->excludes(tokens)
      ->group("Shape");
}

Shape shape_of(const ShapeOptions& options) {
  Shape shape{options.tokens,  options.heads,     options.value_heads == 0 ? options.heads : options.value_heads,
              options.key_dim, options.value_dim, {}};
  if (shape.HV % shape.H != 0)
    fail(FLASH_KDA_ERROR_VALUE, "--value-heads: got {}, accepted is a multiple of --heads {}", shape.HV, shape.H);
  if (!options.lengths.empty()) {
    shape.lengths = parse_lengths(options.lengths).value();
    shape.T = std::accumulate(shape.lengths.begin(), shape.lengths.end(), int64_t{0});
  }
  return shape;
}

std::string Shape::lengths_name() const {
  if (lengths.empty()) return fmt::format("fixed{}", T);
  if (std::all_of(lengths.begin(), lengths.end(), [&](int64_t length) { return length == lengths.front(); }))
    return fmt::format("{}x{}", lengths.size(), lengths.front());
  return fmt::format("ragged{}", T);
}

}  // namespace flash_kda::cli

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "api/error.h"
#include "cli/commands.h"
#include "flash_kda/flash_kda.hpp"

namespace flash_kda::cli {
namespace {

constexpr const char* kCommands = "run, check, bench, generate, info";

/// What CLI11 found wrong, in one line.
std::string message_of(const CLI::App* app, const CLI::Error& error) {
  const bool command_known = !app->get_subcommands().empty();
  const bool extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (!command_known && extra)
    return fmt::format("command: got {}, accepted is {} (see flashkda --help)", fmt::join(app->remaining(), " "),
                       kCommands);
  return fmt::format("{} (see flashkda{} --help)", error.what(),
                     command_known ? " " + app->get_subcommands().front()->get_name() : "");
}

/// Names in a file may hold anything: what a terminal would obey is shown as \xNN.
std::string printable(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    if (const auto byte = static_cast<unsigned char>(c); byte < 0x20 || byte == 0x7f)
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", byte);
    else
      shown += c;
  }
  return shown;
}

int run(int argc, char** argv) {
  CLI::App app("FlashKDA: Kimi Delta Attention on CPUs and CUDA GPUs, from the command line.", "flashkda");
  app.set_version_flag("--version", version());
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return fmt::format("flashkda: {}\n", message_of(failed, error));
  });
  app.footer(
      "A first session:\n"
      "  flashkda generate in.safetensors --tokens 2048 --heads 4   inputs\n"
      "  flashkda run in.safetensors -o out.safetensors             outputs, final state, time\n"
      "  flashkda check in.safetensors                              errors against fp64\n"
      "  flashkda bench --device cpu                                a table of times\n"
      "  flashkda info                                              what this build and machine can do\n"
      "'flashkda COMMAND --help' explains a command.\n"
      "Exit codes: 0 fine, 1 a check failed, 2 wrong usage, wrong input or no such device.");
  const std::vector<Command> commands{add_run(app), add_check(app), add_bench(app), add_generate(app), add_info(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kError;
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  fail(FLASH_KDA_ERROR_VALUE, "command: got none, accepted is {} (see flashkda --help)", kCommands);
}

/// A process may be started with standard streams closed; the first file that it opens would then become one of them.
/// What takes their place cannot be written to, so that lost output is still an error.
void fill_standard_streams() {
  int descriptor = 0;
  do descriptor = open("/dev/null", O_RDONLY);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
}

}  // namespace
}  // namespace flash_kda::cli

int main(int argc, char** argv) {
  flash_kda::cli::fill_standard_streams();
  try {
    const int code = flash_kda::cli::run(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    std::fputs("flashkda: standard output: cannot be written in full\n", stderr);
  } catch (const std::bad_alloc&) {
    std::fputs("flashkda: host memory ran out: the tensors of this call do not fit\n", stderr);
  } catch (const std::exception& error) {
    fmt::print(stderr, "flashkda: {}\n", flash_kda::cli::printable(error.what()));
  }
  return flash_kda::cli::kError;
}

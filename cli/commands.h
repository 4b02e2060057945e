// The subcommands. Each adds itself to the application, with its options and its help, and returns what runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace flash_kda::cli {

/// Exit codes of the tool.
enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,
  kError = 2,  ///< usage, input, device
};

struct Command {
  CLI::App* app;
  std::function<ExitCode()> run;
};

Command add_run(CLI::App& app);
Command add_check(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_generate(CLI::App& app);
Command add_info(CLI::App& app);

}  // namespace flash_kda::cli

#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace flash_kda::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { show(""); }

void Progress::show(const std::string& line) {
  if (terminal_) fmt::print(stderr, "\r\x1b[K{}", line);
}

}  // namespace flash_kda::cli

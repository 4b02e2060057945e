#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

namespace flash_kda::cli {

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::show(const std::string& line) const {
  clear();
  if (terminal_) std::fputs(line.c_str(), stderr);
}

void Progress::clear() const noexcept {
  if (terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace flash_kda::cli

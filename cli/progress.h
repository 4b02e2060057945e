// One line of progress on stderr, only where that is a terminal.
#pragma once

#include <string>

namespace flash_kda::cli {

/// Replaces the line of the one before; the destructor clears it.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& line) const;
  void clear() const noexcept;

 private:
  bool terminal_;
};

}  // namespace flash_kda::cli

// Where a call stands in the sources, for messages.
#pragma once

namespace flash_kda {

/// As the default of a function's last parameter, Place::current() is the place of that function's call. (clang 14 does
/// not have std::source_location.)
struct Place {
  const char* file;
  int line;

  static constexpr Place current(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace flash_kda

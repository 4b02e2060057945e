// The one exception class of the library. It never crosses the C interface: dispatch.cpp turns it into a status and a message.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "flash_kda/flash_kda.h"

namespace flash_kda {

class Error : public std::runtime_error {
 public:
  Error(flash_kda_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  flash_kda_status status() const { return status_; }

 private:
  flash_kda_status status_;
};

/// Refuse a call. A message names the argument, what it got and what is accepted.
template <typename... Args>
[[noreturn]] void fail(flash_kda_status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flash_kda

// How the library refuses a call: it throws the exception class of the C++ header, which never crosses the C interface:
// dispatch.cpp turns it into a status and a message.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "flash_kda/error.hpp"

namespace flash_kda {

/// Refuse a call. A message names the argument, what it got and what is accepted.
template <typename... Args>
[[noreturn]] void fail(flash_kda_status status, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(status, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flash_kda

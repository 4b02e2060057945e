// JSON that the tool prints or writes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace flash_kda::cli {

/// Indented, with a line's end. File names may be any bytes, JSON is UTF-8: others are replaced by U+FFFD.
inline std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace flash_kda::cli

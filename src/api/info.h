// What this build and machine can do.
#pragma once

#include <string>

namespace flash_kda {

/// The JSON object of flash_kda_info.
std::string info_json();

}  // namespace flash_kda

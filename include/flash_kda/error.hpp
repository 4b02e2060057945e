/// The exception of FlashKDA's C++ header. The library itself refuses with the same class, but it never crosses the C
/// interface.
#ifndef FLASH_KDA_ERROR_HPP_
#define FLASH_KDA_ERROR_HPP_

#include <stdexcept>
#include <string>

#include "flash_kda/flash_kda.h"

namespace flash_kda {

/// A refused or failed call. what() names the argument, what it got and what is accepted; a CUDA failure names the
/// call, its code and its place. After an Error from validation nothing has been written.
class Error : public std::runtime_error {
 public:
  Error(flash_kda_status status, const std::string& message) : std::runtime_error(message), status_(status) {}

  /// The kind of the failure, never FLASH_KDA_OK.
  flash_kda_status status() const noexcept { return status_; }

 private:
  flash_kda_status status_;
};

}  // namespace flash_kda

#endif  // FLASH_KDA_ERROR_HPP_

// Any bytes as a safetensors file: a refusal, or tensors that are what their shapes say.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "api/params.h"
#include "flash_kda/error.hpp"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto file = flash_kda::io::parse_safetensors({reinterpret_cast<const std::byte*>(data), size}, "fuzz");
    for (const auto& [name, tensor] : file.tensors) {
      const int64_t bytes = tensor.elements() * flash_kda::size_of(tensor.dtype);
      if (bytes < 0 || static_cast<size_t>(bytes) != tensor.data.size() || tensor.data.size() > size) std::abort();
    }
  } catch (const flash_kda::Error& error) {
    if (error.what()[0] == '\0') std::abort();
  }
  return 0;
}

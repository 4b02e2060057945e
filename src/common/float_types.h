// bfloat16 and float16 in memory, as plain conversions that work on every host compiler.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "flash_kda/flash_kda.h"

namespace flash_kda {

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bf16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

/// Round to nearest even; NaN stays NaN.
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

/// Round to nearest even, overflow to infinity; NaN stays NaN.
inline uint16_t float_to_f16(float value) {
  const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x1p-14F)  // subnormal: a multiple of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 24))));
  const uint32_t rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

/// Element `i` of an array of any floating-point type.
inline double load_element(const void* data, flash_kda_dtype dtype, int64_t i) {
  switch (dtype) {
    case FLASH_KDA_F64:
      return static_cast<const double*>(data)[i];
    case FLASH_KDA_F32:
      return static_cast<double>(static_cast<const float*>(data)[i]);
    case FLASH_KDA_BF16:
      return static_cast<double>(bf16_to_float(static_cast<const uint16_t*>(data)[i]));
    case FLASH_KDA_F16:
      return static_cast<double>(f16_to_float(static_cast<const uint16_t*>(data)[i]));
    default:
      return std::nan("");
  }
}

inline void store_element(void* data, flash_kda_dtype dtype, int64_t i, double value) {
  switch (dtype) {
    case FLASH_KDA_F64:
      static_cast<double*>(data)[i] = value;
      break;
    case FLASH_KDA_F32:
      static_cast<float*>(data)[i] = static_cast<float>(value);
      break;
    case FLASH_KDA_BF16:
      static_cast<uint16_t*>(data)[i] = float_to_bf16(static_cast<float>(value));
      break;
    case FLASH_KDA_F16:
      static_cast<uint16_t*>(data)[i] = float_to_f16(static_cast<float>(value));
      break;
    default:
      break;
  }
}

}  // namespace flash_kda

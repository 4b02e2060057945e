// Which tokens and which state slots a sequence has. constexpr, so that host and device share the one definition.
#pragma once

#include <cstdint>

#include "api/params.h"

namespace flash_kda {

/// Tokens [begin, begin + length) of batch row `batch`.
struct Sequence {
  int64_t batch = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

/// Clamped to [0, T]: a malformed cu_seqlens on a device gives wrong results, never an access out of bounds.
constexpr Sequence sequence_of(const Params& p, int64_t n) {
  if (p.cu_seqlens == nullptr) return {n, 0, p.T};
  const auto at = [&](int64_t i, int64_t low) {
    const int64_t value = p.cu_seqlens_is_64bit ? static_cast<const int64_t*>(p.cu_seqlens)[i]
                                                : static_cast<int64_t>(static_cast<const int32_t*>(p.cu_seqlens)[i]);
    return value < low ? low : value > p.T ? p.T : value;
  };
  const int64_t begin = at(n, 0);
  return {0, begin, at(n + 1, begin) - begin};
}

/// Slot of row `n`, or -1: absent, a negative index, or one past the pool.
constexpr int64_t slot_of(const StateTensor& s, int64_t n) {
  if (s.data == nullptr) return -1;
  const int64_t slot = s.index == nullptr ? n : s.index[n];
  return slot >= 0 && slot < s.slots ? slot : -1;
}

/// The states of one sequence. -1: start from zero, do not store.
struct Slots {
  int64_t read = -1;
  int64_t write = -1;
  bool padded = false;  ///< both indices are given and say "none": outputs are zero, nothing else happens
};

constexpr Slots slots_of(const Params& p, int64_t n) {
  Slots s;
  s.read = slot_of(p.initial_state, n);
  s.write = slot_of(p.final_state, n);
  s.padded = p.initial_state.index != nullptr && p.final_state.index != nullptr && s.read < 0 && s.write < 0;
  if (p.has_initial_state != nullptr && p.has_initial_state[n] == 0) s.read = -1;
  return s;
}

/// Offset in elements of row (head h, state row v) of `slot`.
constexpr int64_t state_offset(const StateTensor& s, int64_t slot, int64_t h, int64_t v) {
  return slot * s.stride_slot + h * s.stride_head + v * s.stride_row;
}

/// Offset in elements of token t of batch row b, head h.
constexpr int64_t token_offset(const TokenTensor& x, int64_t b, int64_t t, int64_t h) {
  return b * x.stride_batch + t * x.stride_token + h * x.stride_head;
}

}  // namespace flash_kda

// The checkpoints of a call, found by sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "api/params.h"
#include "common/sequence.h"

namespace flash_kda::cpu {

/// Store the state after `offset` tokens of `sequence` in `slot` of Params::checkpoint_state.
struct Checkpoint {
  int32_t sequence = 0;
  int32_t offset = 0;
  int64_t slot = 0;
};

class Checkpoints {
 public:
  explicit Checkpoints(const Params& p) {
    for (int64_t m = 0; m < p.M; ++m) {
      const int64_t slot = slot_of(p.checkpoint_state, m);
      if (slot >= 0) sorted_.push_back({p.checkpoints[2 * m], p.checkpoints[2 * m + 1], slot});
    }
    std::sort(sorted_.begin(), sorted_.end(), [](const Checkpoint& a, const Checkpoint& b) {
      return std::tie(a.sequence, a.offset) < std::tie(b.sequence, b.offset);
    });
  }

  /// In order of offset.
  std::span<const Checkpoint> of_sequence(int64_t n) const {
    const auto before = [](const Checkpoint& c, int64_t sequence) { return c.sequence < sequence; };
    const auto begin = std::lower_bound(sorted_.begin(), sorted_.end(), n, before);
    return {begin, std::lower_bound(begin, sorted_.end(), n + 1, before)};
  }

 private:
  std::vector<Checkpoint> sorted_;
};

}  // namespace flash_kda::cpu

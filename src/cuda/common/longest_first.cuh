// Order of the sequences of a packed batch: the longest starts first, so that none is left alone at the end.
#pragma once

#include "common/sequence.h"

namespace flash_kda::cuda {

/// Batches of at most this many packed sequences start with the longest; ranking more costs more than it gains.
inline constexpr int kMaxRankedSequences = 128;

/// The `rank`-th longest sequence (ties by position). Called by the whole CTA; ends with a barrier.
__device__ __forceinline__ int64_t sequence_of_rank(const Params& p, int64_t rank) {
  if (p.cu_seqlens == nullptr || p.N > kMaxRankedSequences) return rank;
  __shared__ int64_t lengths[kMaxRankedSequences];
  __shared__ int chosen;
  const int N = static_cast<int>(p.N);
  for (int n = static_cast<int>(threadIdx.x); n < N; n += static_cast<int>(blockDim.x))
    lengths[n] = sequence_of(p, n).length;
  __syncthreads();
  for (int n = static_cast<int>(threadIdx.x); n < N; n += static_cast<int>(blockDim.x)) {
    int longer = 0;
    for (int m = 0; m < N; ++m) longer += lengths[m] > lengths[n] || (lengths[m] == lengths[n] && m < n);
    if (longer == rank) chosen = n;
  }
  __syncthreads();
  return chosen;
}

}  // namespace flash_kda::cuda

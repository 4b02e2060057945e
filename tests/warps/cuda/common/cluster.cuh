// The exchange between CTAs of src/cuda/common/cluster.cuh in plain C++.
#pragma once

#include "cuda/common/ptx.cuh"

namespace flash_kda::cuda {

inline void sync_cluster() { test::sync_cluster(); }

/// The place in CTA `rank` that `pointer` names in the own one.
template <typename T>
T* place_in_cluster(T* pointer, int rank) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(pointer) +
                            static_cast<ptrdiff_t>(shared_memory_of_cta) * (rank - test::cta_rank());
  return const_cast<T*>(reinterpret_cast<const T*>(bytes));
}

inline void arrive_as_warp_in_both(uint64_t* barrier, int peer, int lane) {
  arrive_as_warp(barrier, lane);
  if (lane == 0)
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cluster, ptx::space_shared, place_in_cluster(barrier, peer));
}

inline void copy_to_peer(const void* shared, uint32_t bytes, uint64_t* barrier, int peer) {
  const auto* const source = static_cast<const unsigned char*>(shared);
  std::memcpy(const_cast<unsigned char*>(place_in_cluster(source, peer)), source, bytes);
  EmulatedBarrier& remote = barriers.at(place_in_cluster(barrier, peer));
  remote.bytes -= bytes;
  remote.settle();
}

}  // namespace flash_kda::cuda

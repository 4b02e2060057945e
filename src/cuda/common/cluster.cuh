// Two CTAs of a cluster that share work through each other's shared memory. Both have the same layout, so that a place
// in the own one names the place in the other's.
#pragma once

#include "cuda/common/ptx.cuh"

namespace flash_kda::cuda {

/// All threads of both CTAs.
__device__ __forceinline__ void sync_cluster() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

/// Address, in the cluster's window, of the place in the shared memory of CTA `rank` that `pointer` has in the own one.
__device__ __forceinline__ uint32_t address_in_cluster(const void* pointer, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
  return address;
}

/// One arrival, at this barrier and at that of CTA `peer`, when the warp's lanes have read what the barrier guards.
/// That the other CTA sees what they have written is not said: it would cost a fence of the whole cluster.
__device__ __forceinline__ void arrive_as_warp_in_both(uint64_t* barrier, int peer, int lane) {
  __syncwarp();
  if (lane == 0) {
    ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier);
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_cluster(barrier, peer)) : "memory");
  }
}

/// Bulk copy of `bytes` from own shared memory to the same place in that of CTA `peer`, completing on its `barrier`:
/// address and `bytes` are multiples of 16. One thread; writers have passed fence_to_async_proxy and a barrier before.
__device__ __forceinline__ void copy_to_peer(const void* shared, uint32_t bytes, uint64_t* barrier, int peer) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   address_in_cluster(shared, peer)),
               "r"(shared_address(shared)), "r"(bytes), "r"(address_in_cluster(barrier, peer))
               : "memory");
}

}  // namespace flash_kda::cuda

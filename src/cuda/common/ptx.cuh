// Instruction leaves: one function an instruction, nothing else. Barriers, bulk copies and fences come from CCCL's
// cuda::ptx; this file adds what it lacks. Matrix fragments are named as in the PTX manual, section "mma.m16n8k16":
//   lane = 4 * group + member, group 0...7, member 0...3
//   A (16x16 bf16)  a[0] rows group, columns 2*member + {0,1}; a[1] rows group + 8; a[2], a[3] the same, columns + 8
//   B (16x8 bf16)   b[0] rows 2*member + {0,1}, column group; b[1] rows + 8
//   C (16x8 fp32)   c[0], c[1] row group, columns 2*member + {0,1}; c[2], c[3] row group + 8
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cuda/ptx>

namespace flash_kda::cuda {

namespace ptx = ::cuda::ptx;

/// Shared-memory address as the 32-bit number that ldmatrix and stmatrix take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 2^x, relative error about 2^-22; results below 2^-126 are flushed to 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1/x, relative error about 2^-23; 1/inf is 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / sqrt(x), relative error about 1e-7; denormals count as zero.
__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two floats rounded to nearest bf16: `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

__device__ __forceinline__ float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

/// Four 8x8 bf16 matrices; lane l passes the address of row l % 8 of matrix l / 8. Fragment r holds, of matrix r, row
/// group, columns 2*member + {0,1}. A warp calls it together. Volatile: shared memory changes behind the compiler's
/// back.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&fragment)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

/// The same with every matrix transposed: fragment r holds rows 2*member + {0,1}, column group.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&fragment)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

/// Inverse of load_matrix_x4.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, const uint32_t (&fragment)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

/// Inverse of load_matrix_x4_transposed.
__device__ __forceinline__ void store_matrix_x4_transposed(uint32_t address, const uint32_t (&fragment)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(address), "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
               : "memory");
}

/// Two matrices, transposed: lanes 0 ... 15 pass the rows.
__device__ __forceinline__ void store_matrix_x2_transposed(uint32_t address, const uint32_t (&fragment)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               :
               : "r"(address), "r"(fragment[0]), "r"(fragment[1])
               : "memory");
}

/// c += a * b, bf16 operands, fp32 accumulation.
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// x as a number of which the compiler knows nothing: what depends on it alone is computed again, for kept over a loop
/// it would fill the registers.
__device__ __forceinline__ int forget(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// threadIdx.x, read again by every call.
__device__ __forceinline__ int thread_of_cta() {
  unsigned x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return static_cast<int>(x & 1023);
}

/// Wait until the phase of `parity` has completed. Any number of threads.
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t parity) {
  while (!ptx::mbarrier_try_wait_parity(barrier, parity)) {
  }
}

/// One arrival for all that the warp's lanes have read and written before.
__device__ __forceinline__ void arrive_as_warp(uint64_t* barrier, int lane) {
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier);
}

/// Bulk copy global -> shared: both addresses and `bytes` are multiples of 16. One thread; completes on `barrier`.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, shared, global, bytes, barrier);
}

/// Bulk copy shared -> global, in the calling thread's current bulk group. Writers of `shared` have passed
/// fence_to_async_proxy and a barrier before.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, uint32_t bytes) {
  ptx::cp_async_bulk(ptx::space_global, ptx::space_shared, global, shared, bytes);
}

/// Words of global memory by which CTAs of a grid speak to each other. All that a thread has done before
/// store_release() is seen by the device before what it stores is; the relaxed ones order nothing.
__device__ __forceinline__ void store_release(uint64_t* word, uint64_t x) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* word, uint32_t x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(x) : "memory");
}
__device__ __forceinline__ uint64_t load_relaxed(const uint64_t* word) {
  uint64_t x;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
  return x;
}
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* word) {
  uint32_t x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(word) : "memory");
  return x;
}

/// Orders what the calling thread knows of global memory before later accesses of the copy engine to it.
__device__ __forceinline__ void fence_global_to_async_proxy() { ptx::fence_proxy_async(ptx::space_global); }

/// Orders the calling thread's ordinary stores to shared memory before later accesses of the copy engine. Every writer
/// calls it, then a barrier.
__device__ __forceinline__ void fence_to_async_proxy() { ptx::fence_proxy_async(ptx::space_shared); }

}  // namespace flash_kda::cuda

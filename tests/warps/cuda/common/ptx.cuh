// The instructions of src/cuda/common/ptx.cuh in plain C++, on the fibers of lanes.h: what a warp does together reads
// the words that all its lanes have put up. Found before that file by tests that run device code on the CPU. Copies
// are done when they are asked for, or late (lanes.h). Missing fences go unnoticed here.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <map>
#include <vector>

#include "api/params.h"
#include "lanes.h"

// ---- what the CUDA compiler knows of itself ----
#undef __forceinline__
#define __forceinline__ inline
#undef __shared__
#define __shared__ static

struct EmulatedIndex {
  struct X {
    operator unsigned() const { return static_cast<unsigned>(flash_kda::test::thread_index()); }
  } x;
};
inline EmulatedIndex threadIdx;
inline dim3 blockDim;

inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline void __syncwarp() { flash_kda::test::sync_warp(); }
inline void __syncthreads() { flash_kda::test::sync_cta(); }
inline void __nanosleep(unsigned) { flash_kda::test::yield(); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline void emulated_grid_dependency_synchronize() {}
#define cudaGridDependencySynchronize emulated_grid_dependency_synchronize

namespace flash_kda::cuda {

// ---- warps ----

inline int emulated_lane() { return test::thread_index() % 32; }

/// Put up `words`, call `read`, which may look at those of every lane, and go on when all have.
template <typename Read>
void share_words(std::initializer_list<uint32_t> words, const Read& read) {
  std::copy(words.begin(), words.end(), test::words_of_lane(emulated_lane()));
  test::sync_warp();
  read();
  test::sync_warp();
}

inline int forget(int x) { return x; }
inline int thread_of_cta() { return test::thread_index(); }

}  // namespace flash_kda::cuda

inline float __shfl_sync(unsigned, float x, int lane) {
  float result = 0;
  flash_kda::cuda::share_words({std::bit_cast<uint32_t>(x)},
                               [&] { result = __uint_as_float(flash_kda::test::words_of_lane(lane % 32)[0]); });
  return result;
}
inline int __shfl_sync(unsigned all, int x, int lane) {
  return std::bit_cast<int>(__shfl_sync(all, std::bit_cast<float>(x), lane));
}
inline unsigned __ballot_sync(unsigned, bool holds) {
  unsigned lanes = 0;
  flash_kda::cuda::share_words({holds}, [&] {
    for (int lane = 0; lane < 32; ++lane) lanes |= flash_kda::test::words_of_lane(lane)[0] << lane;
  });
  return lanes;
}
inline float __shfl_xor_sync(unsigned all, float x, int mask) {
  return __shfl_sync(all, x, flash_kda::cuda::emulated_lane() ^ mask);
}

namespace flash_kda::cuda {

// ---- numbers ----

inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0.0f : y;
}
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float rsqrt_approx(float x) { return 1.0f / std::sqrt(x); }
inline uint32_t pack(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }
inline uint32_t pack_bf16(float low, float high) {
  return pack(__bfloat16_as_ushort(__float2bfloat16_rn(low)), __bfloat16_as_ushort(__float2bfloat16_rn(high)));
}
inline float low_bf16(uint32_t packed) { return __uint_as_float(packed << 16); }
inline float high_bf16(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }
inline float float_of_bf16(uint16_t x) { return low_bf16(x); }

// ---- shared memory ---- that of all CTAs, one behind the other; addresses count from its start
inline unsigned char* shared_memory = nullptr;

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - shared_memory);
}
inline uint16_t& element_at(uint32_t address) { return *reinterpret_cast<uint16_t*>(shared_memory + address); }

/// Calls visit(r, address of row `row` of matrix r) for the matrices of ldmatrix and stmatrix.
template <typename Visit>
void visit_rows(uint32_t address, int matrices, int row, const Visit& visit) {
  share_words({address}, [&] {
    for (int r = 0; r < matrices; ++r) visit(r, test::words_of_lane(8 * r + row)[0]);
  });
}
inline void load_matrix_x4(uint32_t (&fragment)[4], uint32_t address) {
  visit_rows(address, 4, emulated_lane() / 4, [&](int r, uint32_t row) {
    const uint32_t place = row + 4 * static_cast<uint32_t>(emulated_lane() % 4);
    fragment[r] = pack(element_at(place), element_at(place + 2));
  });
}
inline void load_matrix_x4_transposed(uint32_t (&fragment)[4], uint32_t address) {
  const auto place = 2 * static_cast<uint32_t>(emulated_lane() / 4);
  for (int odd = 0; odd < 2; ++odd)
    visit_rows(address, 4, 2 * (emulated_lane() % 4) + odd, [&](int r, uint32_t row) {
      const uint16_t x = element_at(row + place);
      fragment[r] = odd == 0 ? x : pack(static_cast<uint16_t>(fragment[r]), x);
    });
}
template <int kMatrices>
void store_matrices(uint32_t address, const uint32_t (&fragment)[kMatrices]) {
  visit_rows(address, kMatrices, emulated_lane() / 4, [&](int r, uint32_t row) {
    const uint32_t place = row + 4 * static_cast<uint32_t>(emulated_lane() % 4);
    element_at(place) = static_cast<uint16_t>(fragment[r]);
    element_at(place + 2) = static_cast<uint16_t>(fragment[r] >> 16);
  });
}
inline void store_matrix_x4(uint32_t address, const uint32_t (&fragment)[4]) { store_matrices(address, fragment); }
template <int kMatrices>
void store_matrices_transposed(uint32_t address, const uint32_t (&fragment)[kMatrices]) {
  const auto place = 2 * static_cast<uint32_t>(emulated_lane() / 4);
  for (int odd = 0; odd < 2; ++odd)
    visit_rows(address, kMatrices, 2 * (emulated_lane() % 4) + odd,
               [&](int r, uint32_t row) { element_at(row + place) = static_cast<uint16_t>(fragment[r] >> 16 * odd); });
}
inline void store_matrix_x4_transposed(uint32_t address, const uint32_t (&fragment)[4]) {
  store_matrices_transposed(address, fragment);
}
inline void store_matrix_x2_transposed(uint32_t address, const uint32_t (&fragment)[2]) {
  store_matrices_transposed(address, fragment);
}

// ---- products ----

/// Element (row, column) of a matrix whose 8x8 parts are words word(row / 8, column / 8) of the lanes.
template <typename Word>
uint16_t fragment_element(int row, int column, const Word& word) {
  const uint32_t pair = test::words_of_lane(4 * (row % 8) + column % 8 / 2)[word(row / 8, column / 8)];
  return static_cast<uint16_t>(pair >> 16 * (column % 2));
}

/// c[4j ... 4j + 3], the C fragments of columns 8j ... 8j + 7 of a 16-row product over `depth`, += sum of
/// left(row, k) * right(k, column).
template <typename Left, typename Right>
void add_products(float* c, int columns, int depth, const Left& left, const Right& right) {
  for (int j = 0; j < columns / 8; ++j)
    for (int i = 0; i < 4; ++i) {
      const int row = emulated_lane() / 4 + 8 * (i / 2), column = 8 * j + 2 * (emulated_lane() % 4) + i % 2;
      double sum = c[4 * j + i];
      for (int k = 0; k < depth; ++k) sum += static_cast<double>(left(row, k)) * static_cast<double>(right(k, column));
      c[4 * j + i] = static_cast<float>(sum);
    }
}
template <typename ToFloat>
void multiply_fragments(float (&c)[4], std::initializer_list<uint32_t> words, int depth, const ToFloat& to_float) {
  share_words(words, [&] {
    add_products(
        c, 8, depth,
        [&](int row, int k) { return to_float(fragment_element(row, k, [](int r, int kk) { return r + 2 * kk; })); },
        [&](int k, int column) {
          return to_float(fragment_element(column, k, [&](int, int kk) { return depth / 4 + kk; }));
        });
  });
}
inline void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_fragments(c, {a[0], a[1], a[2], a[3], b0, b1}, 16, float_of_bf16);
}

// ---- barriers and copies ----

struct EmulatedBarrier {
  uint32_t threads = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  void settle() {
    if (pending != 0 || bytes != 0) return;
    ++phase;
    pending = threads;
  }
};
inline std::map<const uint64_t*, EmulatedBarrier> barriers;

namespace ptx {

enum Word { sem_release, scope_cta, scope_cluster, space_shared, space_cluster, space_global };

inline void mbarrier_init(uint64_t* barrier, uint32_t threads) { barriers[barrier] = {threads, threads, 0, 0}; }
inline void fence_mbarrier_init(Word, Word) {}
inline void mbarrier_arrive(Word, Word, Word, uint64_t* barrier) {
  --barriers.at(barrier).pending;
  barriers.at(barrier).settle();
}
template <int>
struct n32_t {};
inline void cp_async_bulk_commit_group() {}
inline std::map<size_t, int> unread_stores, unwritten_stores;  ///< of a fiber, in flight
inline void wait_for_stores(const int& count) {
  test::wait_until([&] {
    test::need(&count);
    return count == 0;
  });
}
inline void cp_async_bulk_wait_group_read(n32_t<0>) { wait_for_stores(unread_stores[test::fiber_index()]); }
inline void cp_async_bulk_wait_group(n32_t<0>) {
  cp_async_bulk_wait_group_read(n32_t<0>{});
  wait_for_stores(unwritten_stores[test::fiber_index()]);
}
inline void mbarrier_arrive_expect_tx(Word, Word, Word, uint64_t* barrier, uint32_t bytes) {
  barriers.at(barrier).bytes += bytes;
  mbarrier_arrive(sem_release, scope_cta, space_shared, barrier);
}

}  // namespace ptx

/// What a tensor map of boxes of [32 tokens, 64 channels] stands for here.
struct EmulatedMap {
  const TokenTensor* tensor;
  int64_t tokens;
};
inline CUtensorMap emulated_map(const TokenTensor& tensor, int64_t tokens) {
  CUtensorMap map = {};
  const EmulatedMap content = {&tensor, tokens};
  std::memcpy(&map, &content, sizeof(content));
  return map;
}

namespace ptx {

inline void cp_async_bulk_tensor(Word, Word, unsigned char* shared, const CUtensorMap* map, const int32_t (&corner)[4],
                                 uint64_t* barrier) {
  constexpr int kTokens = 32, kChannels = 64;
  EmulatedMap source;
  std::memcpy(&source, map, sizeof(source));
  const TokenTensor& x = *source.tensor;
  const auto* const data =
      static_cast<const uint16_t*>(x.data) + corner[3] * x.stride_batch + corner[1] * x.stride_head;
  test::do_asynchronously(barrier, [=, first_token = corner[2], first_channel = corner[0], tokens = source.tokens,
                                    stride = x.stride_token] {
    for (int t = 0; t < kTokens; ++t)
      for (int c = 0; c < kChannels; ++c) {
        const int64_t token = first_token + t;
        const uint16_t value = token < tokens ? data[token * stride + first_channel + c] : uint16_t{0};
        std::memcpy(shared + t * 128 + (c / 8 ^ t % 8) * 16 + c % 8 * 2, &value, sizeof(value));
      }
    barriers.at(barrier).bytes -= kTokens * kChannels * 2;
    barriers.at(barrier).settle();
  });
}

}  // namespace ptx

inline void wait_barrier(uint64_t* barrier, uint32_t parity) {
  test::wait_until([&] {
    test::need(barrier);
    return barriers.at(barrier).phase % 2 != parity;
  });
}
inline void arrive_as_warp(uint64_t* barrier, int lane) {
  test::sync_warp();
  if (lane == 0) ptx::mbarrier_arrive(ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier);
}
inline std::map<uint32_t, int64_t> bulk_loads;  ///< how many so far, by their bytes
inline void bulk_load(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  ++bulk_loads[bytes];
  test::do_asynchronously(barrier, [=] {
    std::memcpy(shared, global, bytes);
    barriers.at(barrier).bytes -= bytes;
    barriers.at(barrier).settle();
  });
}
inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
  int &unread = ptx::unread_stores[test::fiber_index()], &unwritten = ptx::unwritten_stores[test::fiber_index()];
  ++unread;
  ++unwritten;
  test::do_asynchronously(&unread, [=, &unread, &unwritten] {
    const auto* const first = static_cast<const unsigned char*>(shared);
    --unread;
    test::do_asynchronously(&unwritten, [=, &unwritten, content = std::vector<unsigned char>(first, first + bytes)] {
      std::copy(content.begin(), content.end(), static_cast<unsigned char*>(global));
      --unwritten;
    });
  });
}
inline void fence_to_async_proxy() {}
inline void fence_global_to_async_proxy() {}

// ---- words of global memory ----
inline void store_release(uint64_t* word, uint64_t x) { *word = x; }
inline uint64_t load_relaxed(const uint64_t* word) { return *word; }
inline void store_relaxed(uint32_t* word, uint32_t x) { *word = x; }
inline uint32_t load_relaxed(const uint32_t* word) { return *word; }

}  // namespace flash_kda::cuda

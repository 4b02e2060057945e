// The warpgroup products of src/cuda/common/wgmma.cuh in plain C++. Every warp multiplies its own 16 rows, when it is
// asked for or, late (lanes.h), when it is waited for: then from the registers and tiles as they are by then.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "cuda/common/ptx.cuh"

namespace flash_kda::cuda {

/// Of a fiber: groups of products that are asked for and not done, the last one not committed yet.
inline std::map<size_t, std::deque<std::vector<std::function<void()>>>> products;

inline void do_product(std::function<void()> product) {
  if (!test::is_late()) return product();
  auto& groups = products[test::fiber_index()];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back(std::move(product));
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  if (test::is_late()) products[test::fiber_index()].emplace_back();
}
template <int kPending>
void wgmma_wait() {
  if (!test::is_late()) return;
  auto& groups = products[test::fiber_index()];
  for (; groups.size() > kPending + 1; groups.pop_front())
    for (const std::function<void()>& product : groups.front()) product();
}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

struct SwizzledOperand {
  uint32_t address;
  explicit SwizzledOperand(uint32_t tile) : address(tile) {}
  uint64_t at(uint32_t bytes) const { return address + bytes; }
};

/// Element `column` of row `row` of a tile of swizzled rows of 128 bytes.
inline float swizzled_element(uint64_t tile, int row, int column) {
  const auto place = static_cast<uint32_t>(tile) + static_cast<uint32_t>(row * 128 + column * 2);
  return float_of_bf16(element_at(place ^ (place >> 7 & 7) << 4));
}

/// d, or without `adds` nothing, plus the product.
template <int kColumns>
void multiply_tile(float (&d)[kColumns / 2], const uint32_t (&a)[4], uint64_t b, bool transposed, bool adds = true) {
  do_product([=, &d, &a] {
    share_words({a[0], a[1], a[2], a[3]}, [&] {
      if (!adds) std::fill(std::begin(d), std::end(d), 0.0f);
      add_products(
          d, kColumns, 16,
          [](int row, int k) {
            return float_of_bf16(fragment_element(row, k, [](int r, int kk) { return r + 2 * kk; }));
          },
          [&](int k, int column) {
            return transposed ? swizzled_element(b, k, column) : swizzled_element(b, column, k);
          });
    });
  });
}
/// The same with both operands in shared memory.
template <int kColumns>
void multiply_tiles(float (&d)[kColumns / 2], uint64_t a, uint64_t b, bool adds = true) {
  do_product([=, &d] {
    share_words({}, [&] {
      if (!adds) std::fill(std::begin(d), std::end(d), 0.0f);
      add_products(
          d, kColumns, 16,
          [&](int row, int k) { return swizzled_element(a, 16 * (static_cast<int>(threadIdx.x) / 32 % 4) + row, k); },
          [&](int k, int column) { return swizzled_element(b, column, k); });
    });
  });
}
inline void multiply_n16(float (&d)[8], uint64_t a, uint64_t b) { multiply_tiles<16>(d, a, b); }
inline void multiply_n32(float (&d)[16], uint64_t a, uint64_t b) { multiply_tiles<32>(d, a, b); }
inline void start_product_n16(float (&d)[8], uint64_t a, uint64_t b) { multiply_tiles<16>(d, a, b, false); }
inline void start_product_n32(float (&d)[16], uint64_t a, uint64_t b) { multiply_tiles<32>(d, a, b, false); }
inline void multiply_n32(float (&d)[16], const uint32_t (&a)[4], uint64_t b) { multiply_tile<32>(d, a, b, false); }
inline void multiply_n64(float (&d)[32], const uint32_t (&a)[4], uint64_t b) { multiply_tile<64>(d, a, b, false); }
inline void multiply_n64_transposed(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  multiply_tile<64>(d, a, b, true);
}
inline void multiply_n32_transposed(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  multiply_tile<32>(d, a, b, true);
}
inline void start_product_n32(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  multiply_tile<32>(d, a, b, false, false);
}
inline void start_product_n32_transposed(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  multiply_tile<32>(d, a, b, true, false);
}
inline void start_product_n64(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  multiply_tile<64>(d, a, b, false, false);
}

}  // namespace flash_kda::cuda

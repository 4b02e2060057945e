// Sizes and layouts of the two-kernel path: the tile, its image in the workspace, shared memory and barriers of both
// kernels. Plain C++, read by the host, both kernels and the tests.
#pragma once

#include <cstddef>
#include <cstdint>

#include "api/params.h"

namespace flash_kda::cuda::two_kernel {

inline constexpr int kTile = 16;      ///< tokens of a tile, the chunk of this path
inline constexpr int kHeadDim = 128;  ///< K and V

// ---- The image of a tile and head in the workspace
// --------------------------------------------------------------------------- Moved as one bulk copy by each kernel, so
// its layout is that of shared memory: rows are swizzled for ldmatrix.

/// Byte offset of element (row, column) of a [16, 128] bf16 tile: 16-byte pieces of a row are permuted by the row.
constexpr int tile_offset(int row, int column) {
  return row * kHeadDim * 2 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

/// Byte offset of element (row, column) of a [16, 16] bf16 matrix: rows 4...7 and 12...15 swap their halves.
constexpr int square_offset(int row, int column) {
  return row * kTile * 2 + (((column >> 3) ^ (row >> 2 & 1)) << 4) + (column & 7) * 2;
}

inline constexpr int kTileBytes = kTile * kHeadDim * 2;
inline constexpr int kSquareBytes = kTile * kTile * 2;

/// Byte offsets in the image. Names as in docs/operator.md: q and k are normalised, q is scaled, padding rows are zero.
struct Image {
  static constexpr int k_decayed = 0;                        ///< [16, 128] bf16, k * 2^G
  static constexpr int q_decayed = k_decayed + kTileBytes;   ///< [16, 128] bf16, scale * q * 2^G
  static constexpr int k_restored = q_decayed + kTileBytes;  ///< [16, 128] bf16, k * 2^(G_16 - G)
  static constexpr int g_total = k_restored + kTileBytes;    ///< [128] fp32, 2^G_16
  static constexpr int inverse = g_total + kHeadDim * 4;     ///< [16, 16] bf16, T
  static constexpr int Mqk = inverse + kSquareBytes;         ///< [16, 16] bf16, P
  static constexpr int beta = Mqk + kSquareBytes;            ///< [16] fp32, after its activation
  static constexpr int bytes = beta + kTile * 4;
};
static_assert(Image::bytes == 13824 + 64 && Image::bytes % 16 == 0);

// ---- Tiles of all sequences ----

/// Every (sequence, tile) has a slot in the workspace. Fixed lengths: slots are dense. Packed: those of sequence n
/// begin at begin(n) / 16 + n, where ceil(length / 16) of them always fit before those of sequence n + 1, so that no
/// prefix sum over the sequences is needed and the host need not know the lengths.
constexpr int64_t tiles_of(int64_t length) { return (length + kTile - 1) / kTile; }
constexpr int64_t first_slot(const Params& p, int64_t n, int64_t begin) {
  return !p.packed ? n * tiles_of(p.T) : begin / kTile + n;
}
constexpr int64_t slot_bound(const Params& p) {
  return !p.packed ? p.N * tiles_of(p.T) : p.N == 0 || p.T == 0 ? 0 : p.T / kTile + p.N;
}

/// Byte offset of the image of (slot, value head).
constexpr int64_t image_offset(int64_t slot, int head, int heads) { return (slot * heads + head) * Image::bytes; }

// ---- prepare ----

inline constexpr int kPrepareThreads = 128;

/// Shared memory of a CTA. `raw` holds the loaded tiles first, then the anchored operands of the triangular products.
template <typename Gate>
struct PrepareShared {
  static constexpr int kRawBytes = 2 * kTileBytes + kTile * kHeadDim * static_cast<int>(sizeof(Gate));

  alignas(128) unsigned char raw[kRawBytes > 3 * kTileBytes ? kRawBytes : 3 * kTileBytes];
  alignas(128) unsigned char image[Image::bytes];
  alignas(16) float dt_bias[kHeadDim];
  alignas(16) float half_sum[2][kHeadDim];  ///< log2 gate summed over rows 0...7 and 8...15
  alignas(16) float lower[kTile][kTile];    ///< beta_i * <k_i, k_j> at [j][i] for j < i, else 0
  float inverse_norm[2][kTile];             ///< of q (with the scale) and of k
  float beta[kTile];
  alignas(8) uint64_t loaded;  ///< transaction barrier of all loads
};

// ---- recurrence ----

inline constexpr int kRowsPerWarp = 16;  ///< rows of the state (V) that a math warp keeps in registers
inline constexpr int kStages = 4;        ///< tiles in flight
inline constexpr int kOutputBuffers = 2;

/// Bytes from one token's row of v or out to the next in shared memory: 16 bytes of padding keep ldmatrix free of
/// conflicts.
constexpr int value_pitch(int rows) { return rows * 2 + 16; }

/// Shared memory of a CTA with `rows` rows of the state, as byte offsets.
struct RecurrenceShared {
  int rows;
  constexpr int value_bytes() const { return kTile * value_pitch(rows); }
  constexpr int stage_bytes() const { return (Image::bytes + value_bytes() + 127) / 128 * 128; }
  constexpr int image(int stage) const { return stage * stage_bytes(); }
  constexpr int value(int stage) const { return image(stage) + Image::bytes; }
  constexpr int output(int buffer) const { return kStages * stage_bytes() + buffer * value_bytes(); }
  constexpr int bytes() const { return output(kOutputBuffers); }
};

/// Threads of a CTA: the math warps, then one load warp and one store warp.
constexpr int recurrence_threads(int rows) { return (rows / kRowsPerWarp + 2) * 32; }

}  // namespace flash_kda::cuda::two_kernel

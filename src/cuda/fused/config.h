// Sizes and the shared-memory plan of the fused kernel. Plain C++, read by the host and the kernel.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "common/sequence.h"

namespace flash_kda::cuda::fused {

inline constexpr int kChunk = 32;     ///< tokens of one step of the state
inline constexpr int kBlock = 16;     ///< tokens that share one anchor of the gate
inline constexpr int kHeadDim = 128;  ///< K and V
inline constexpr int kHalf = 64;      ///< channels of a shared-memory row: 128 bytes
inline constexpr int kWarpgroup = 128;

inline constexpr int kThreads = 4 * kWarpgroup;

/// Which warpgroups do what when a CTA owns `state_groups` * 64 rows (V) of the state; the rest prepares.
struct Roles {
  int state_groups;
  constexpr int prepare_registers() const { return state_groups == 2 ? 88 : 112; }
  static constexpr int state_registers() { return 168; }
  constexpr bool fits() const {
    return kWarpgroup * (state_groups * state_registers() + (4 - state_groups) * prepare_registers()) <= 65536;
  }
};
static_assert(Roles{1}.fits() && Roles{2}.fits());
inline constexpr int kFinishers = 2;  ///< finishing warps: one in each of the first two preparing warpgroups

inline constexpr int kSlice = 16;  ///< channels that a warp scales at a time
inline constexpr int kSlices = kHeadDim / kSlice;

/// Byte offset of element (row, column) of a bf16 tile with rows of 64 elements, swizzled as wgmma wants it.
constexpr int tile_offset(int row, int column) {
  return row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

inline constexpr int kHalfBytes = kChunk * 128;    ///< [32, 64] bf16
inline constexpr int kTileBytes = 2 * kHalfBytes;  ///< [32, 128] bf16 as two halves

/// q and k of block 0 are kept times 2^(G + kShift): with lower_bound >= -5, G falls to -115.4 over 16 tokens, and this
/// factor and its inverse stay within 2^+-58. What the shift does to the products is undone by the token scalars and in
/// P.
inline constexpr float kShift = 58.0f;
inline constexpr float kShiftFactor = 0x1p58f;

/// A chunk in shared memory, in two states: as loaded, and (same bytes) as prepared for the state.
struct Stage {
  alignas(1024) unsigned char q[kTileBytes];  ///< raw q, then q * 2^G, of block 0 shifted
  unsigned char k[kTileBytes];                ///< raw k, then k * 2^G, of block 0 shifted
  unsigned char g[kTileBytes];                ///< raw g, then k * 2^(G_32 - G)
  unsigned char v[kTileBytes];                ///< then out
  unsigned char square[kHalfBytes];  ///< [32, 64]: columns 0...31 T, 32...63 P; blocks above the diagonal stay 0
  float decay[kHeadDim];             ///< 2^G_32
  float beta[kChunk];                ///< after its activation, 0 behind the sequence
  float beta_norm[kChunk];           ///< beta / |k|, of block 0 shifted back
  float key_norm[kChunk];            ///< 1 / |k|
  float query_norm[kChunk];          ///< scale / |q|, of block 0 shifted back
};

/// What the triangular products of a chunk need besides q and k of block 0 in the stage. The rows of `left` are k and q
/// of block 1 times 2^(G - middle of the block); those of `right` are k of block 0 times 2^(-G - kShift), the same
/// times 2^(middle of block 1 - G), and k of block 1 times 2^(middle - G). Two halves of 64 channels each.
struct Operands {
  static constexpr int kLeftHalf = 2 * kBlock * 128, kRightHalf = 3 * kBlock * 128;
  alignas(1024) unsigned char left[2 * kLeftHalf];
  unsigned char right[2 * kRightHalf];
  float square_sum[kSlices][2][kChunk];  ///< of q and of k
};

/// Workspace of an inverse, a block each: the diagonal block of A, transposed, then its inverse. Pitch and gap
/// keep accesses by rows and by columns free of bank conflicts.
struct Triangle {
  alignas(16) float at[kBlock][kBlock + 4];
  float gap[kBlock];
};

inline constexpr int kStages = 4;
inline constexpr int kOperands = 3;

/// What a CTA works on: one sequence of one value head, all of V or half of it. It and the sources are kept in shared
/// memory, for registers are scarce.
struct Task {
  Sequence sequence;
  Slots slots;
  int head;        ///< value head
  int query_head;  ///< of q and k
  int row0;        ///< first row of the state, and first column of v and out, of this CTA
  int chunks;

  /// Tokens of `chunk` that belong to the sequence, up to 32.
  constexpr int valid_tokens(int chunk) const {
    const int left = static_cast<int>(sequence.length) - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
};

struct Shared {
  Stage stage[kStages];
  Operands operands[kOperands];
  Task task;
  __nv_bfloat16* out;  ///< of the task's first token
  Triangle triangle[kFinishers][2];
  float dt_bias[kHeadDim];
  uint32_t next_slice;                  ///< that no scaling warp has taken
  alignas(8) uint64_t loaded[kStages];  ///< raw tiles have landed
  uint64_t scaled[kStages];             ///< every slice of Operands and of the stage is written
  uint64_t consumed[kOperands];         ///< Operands are read
  uint64_t ready[kStages];              ///< prepared for the state
  uint64_t empty[kStages];              ///< used up; one arrival a state warp
};
static_assert(sizeof(Shared) <= 232448);  // 227 KiB, what a CTA of compute capability 9.0 may have

}  // namespace flash_kda::cuda::fused

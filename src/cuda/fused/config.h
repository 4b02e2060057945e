// Sizes and the shared-memory plan of the fused kernel. Plain C++, read by the host and the kernel.
#pragma once

#include <cstdint>

#include "common/sequence.h"

namespace flash_kda::cuda::fused {

inline constexpr int kChunk = 32;     ///< tokens of one step of the state
inline constexpr int kBlock = 16;     ///< tokens that share one anchor of the gate
inline constexpr int kHeadDim = 128;  ///< K and V
inline constexpr int kHalf = 64;      ///< channels of a shared-memory row: 128 bytes
inline constexpr int kWarpgroup = 128;

inline constexpr int kSlice = 8;  ///< channels that a warp scales at a time
inline constexpr int kSlices = kHeadDim / kSlice;

/// Which warpgroups do what when a CTA owns `state_groups` * 64 rows (V) of the state. The first ones are the state's,
/// those after them scale, and the last one finishes: two inverting warps, a scoring and a moving one. With warps 0 ...
/// 3 of a warpgroup on the four schedulers of a multiprocessor, every scheduler has the same mixture.
struct Roles {
  int state_groups;
  constexpr int scale_groups() const { return state_groups == 2 ? 2 : 4; }
  constexpr int threads() const { return (state_groups + scale_groups() + 1) * kWarpgroup; }
  constexpr int scaling_warps() const { return 4 * scale_groups(); }
  /// Of a chunk's kSlices.
  constexpr int slices_per_warp() const { return kSlices / scaling_warps(); }
  /// A thread, after the warpgroups have shared out what they were launched with.
  static constexpr int state_registers() { return 160; }
  static constexpr int scale_registers() { return 48; }
  static constexpr int finish_registers() { return 64; }
  /// setmaxnreg moves only what the launch gives: to every thread the same, a multiple of 8. What does not fit hangs.
  constexpr bool fits() const {
    const int launched = 65536 / threads() / 8 * 8;
    return state_groups * state_registers() + scale_groups() * scale_registers() + finish_registers() <=
           threads() / kWarpgroup * launched;
  }
};
static_assert(Roles{1}.fits() && Roles{2}.fits());
inline constexpr int kInverters = 2;  ///< inverting warps, a chunk each in turn

static_assert(Roles{1}.slices_per_warp() * Roles{1}.scaling_warps() == kSlices);
static_assert(Roles{2}.slices_per_warp() * Roles{2}.scaling_warps() == kSlices);

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

/// Half of the channels of k and q: to the state 64 rows of one product.
struct KeysQueries {
  unsigned char k[kHalfBytes], q[kHalfBytes];
};

/// A chunk in shared memory, in two states: as loaded, and (same bytes) as prepared for the state.
struct Stage {
  alignas(1024) KeysQueries half[2];  ///< raw, then times 2^G, of block 0 shifted
  unsigned char g[kTileBytes];        ///< raw g, then k * 2^(G_32 - G)
  unsigned char v[kTileBytes];        ///< then out
  unsigned char square[kHalfBytes];   ///< [32, 64]: columns 0...31 T, 32...63 P; blocks above the diagonal stay 0
  float decay[kHeadDim];              ///< 2^G_32
  float beta[kChunk];                 ///< after its activation, 0 behind the sequence
  float beta_norm[kChunk];            ///< beta / |k|, of block 0 shifted back
  float key_norm[kChunk];             ///< 1 / |k|
  float query_norm[kChunk];           ///< scale / |q|, of block 0 shifted back
};

/// What the triangular products of a chunk need besides q and k of block 0 in the stage. The rows of `left` are k and q
/// of block 1 times 2^(G - middle of the block); those of `right` are k of block 0 times 2^(-G - kShift), the same
/// times 2^(middle of block 1 - G), and k of block 1 times 2^(middle - G). Two halves of 64 channels each.
struct Operands {
  static constexpr int kLeftHalf = 2 * kBlock * 128, kRightHalf = 3 * kBlock * 128;
  alignas(1024) unsigned char left[2 * kLeftHalf];
  unsigned char right[2 * kRightHalf];
  float query_square_sum[kSlices][kChunk];
};

/// Gates enter the product as fp16 times this: 7.3 * 4096 is below fp16's largest number, and gates down to 1.5e-8 keep
/// its full precision. A relative error of 2^-11 of a gate is far below that of the bf16 operands it scales.
inline constexpr float kGateUnit = 4096.0f;

/// Per-head constants of |log2 gate| * kGateUnit = 1 / (2^(-x) / s + 1 / s), x = (g + bias) * slope, s = its largest
/// value.
struct GateConstants {
  float slope;
  float inverse_scale;      ///< 1 / s
  float log_inverse_scale;  ///< log2(1 / s)
};

/// What the gate of the task's head needs.
struct HeadGate {
  GateConstants constants;
  float bias[kHeadDim];
};

/// Workspace of an inverting warp, a block each: the diagonal block of A, transposed, then its inverse. Pitch and gap
/// keep accesses by rows and by columns free of bank conflicts.
struct Triangle {
  alignas(16) float at[kBlock][kBlock + 4];
  float gap[kBlock];
};

inline constexpr int kStages = 4;
inline constexpr int kOperands = 3;

/// What a CTA works on: one sequence of one value head, all of V or half of it. Kept in shared memory, for registers
/// are scarce.
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
  Triangle triangle[kInverters][2];
  HeadGate gate;
  alignas(8) uint64_t loaded[kStages];  ///< raw tiles have landed
  uint64_t scaled[kStages];             ///< Operands and the stage's q, k, g and decay are written
  uint64_t consumed[kOperands];         ///< Operands are read
  uint64_t inverted[kStages];           ///< T and the token scalars of keys are written
  uint64_t scored[kStages];             ///< P and the token scalars of queries are written
  uint64_t written[kStages];            ///< out stands in the stage, of which the state needs nothing more
};
static_assert(sizeof(Shared) <= 232448);  // 227 KiB, what a CTA of compute capability 9.0 may have

}  // namespace flash_kda::cuda::fused

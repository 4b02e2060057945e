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

/// Which warpgroups do what when a CTA owns `state_groups` * 64 rows (V) of the state: the first ones are the state's,
/// those after them scale, and the last ones finish, a chunk each in turn, and move. With warps 0 ... 3 of a warpgroup
/// on the four schedulers of a multiprocessor, every scheduler has the same mixture.
struct Roles {
  int state_groups;
  /// CTAs that share a task, a cluster: each has 64 rows of the state and scales one half of the channels for both.
  constexpr int ctas() const { return 2 / state_groups; }
  constexpr int scale_groups() const { return 2; }
  constexpr int finish_groups() const { return state_groups == 2 ? 1 : 2; }
  constexpr int groups() const { return state_groups + scale_groups() + finish_groups(); }
  constexpr int threads() const { return groups() * kWarpgroup; }
  constexpr int scaling_warps() const { return 4 * scale_groups(); }
  /// Of a chunk's kSlices.
  constexpr int slices_per_warp() const { return kSlices / ctas() / scaling_warps(); }
  /// A thread, after the warpgroups have shared out what they were launched with.
  constexpr int state_registers() const { return 160; }
  constexpr int scale_registers() const { return state_groups == 2 ? 48 : 80; }
  constexpr int finish_registers() const { return state_groups == 2 ? 64 : 80; }
  /// setmaxnreg moves only what the launch gives: to every thread the same, a multiple of 8. What does not fit hangs.
  constexpr bool fits() const {
    const int launched = 65536 / threads() / 8 * 8;
    return state_groups * state_registers() + scale_groups() * scale_registers() +
               finish_groups() * finish_registers() <=
           groups() * launched;
  }
};
static_assert(Roles{1}.fits() && Roles{2}.fits());

static_assert(Roles{1}.slices_per_warp() == 1 && Roles{2}.slices_per_warp() == 2);

/// Byte offset of element (row, column) of a bf16 tile with rows of 64 elements, swizzled as wgmma wants it.
constexpr int tile_offset(int row, int column) {
  return row * 128 + (((column >> 3) ^ (row & 7)) << 4) + (column & 7) * 2;
}

inline constexpr int kHalfBytes = kChunk * 128;    ///< [32, 64] bf16
inline constexpr int kTileBytes = 2 * kHalfBytes;  ///< [32, 128] bf16 as two halves

/// The state is kept as it would be in the middle of block 1's total of the chunk before: G counts from there. With
/// lower_bound >= -5 the gates of 16 tokens are at most 115.4 in log2 and half of them 57.7, so over block 0 G falls
/// from 0 to -173. k and q of block 0 are kept times 2^(G + kShift); that and its inverse stay within 2^+-87. What the
/// shift does to the products is undone by the token scalars and in P.
inline constexpr float kShift = 87.0f;
inline constexpr float kShiftFactor = 0x1p87f;
/// Keys of block 0 as seen from the middle of block 1 get this factor, or the step there from their own scale, which
/// can be 2^-144, would be none. The token scalars of keys undo it.
inline constexpr float kSeenShift = 20.0f;
inline constexpr float kSeenFactor = 0x1p20f;

/// Half of the channels of k and q: to the state 64 rows of one product.
struct KeysQueries {
  unsigned char k[kHalfBytes], q[kHalfBytes];
};

/// A chunk in shared memory, in two states: as loaded, and (same bytes) as prepared for the state.
struct Stage {
  alignas(1024) KeysQueries half[2];  ///< raw, then times 2^G, of block 0 shifted
  unsigned char g[kTileBytes];        ///< raw g, then k * 2^(middle of block 1 - G), of block 0 * kSeenFactor
  unsigned char v[kTileBytes];        ///< then out
  unsigned char square[kHalfBytes];   ///< [32, 64]: columns 0...31 T transposed, 32...63 P; 16x16 blocks of zeros stay
  float decay[kHeadDim];              ///< from the middle of the chunk before to the middle of block 1
  /// R is the first times v minus the second times S k~: beta / |k|, of block 0 / kSeenFactor, and that / |k|, of block
  /// 0 / kShiftFactor.
  alignas(16) float beta[kChunk][2];
  float query_norm[kChunk];  ///< scale / |q|, of block 0 shifted back
};

/// What the triangular products of a chunk need besides its stage, one half of the channels: k and q of block 1 times 2
/// to G minus the middle of the block, and k of block 0 times 2^(-G - kShift). As 64 rows it is the left operand of the
/// products with block 1 in rows 16 ... 31 and 48 ... 63, where the stage's KeysQueries has block 1 too.
struct OperandsHalf {
  alignas(1024) unsigned char first_down[kBlock * 128];
  unsigned char second_k[kBlock * 128];
  float query_square_sum[kSlices / 2][kChunk];
  unsigned char unused[1024];
  unsigned char second_q[kBlock * 128];
};
static_assert(sizeof(OperandsHalf) == 4 * kBlock * 128);
struct Operands {
  OperandsHalf half[2];
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

/// A 16x16 matrix by columns. The pitch keeps accesses by rows and by columns free of bank conflicts.
struct Triangle {
  alignas(16) float column[kBlock][kBlock + 4];
};

inline constexpr int kStages = 5;
inline constexpr int kOperands = 2;

/// What a CTA works on: one sequence of one value head, all of V or half of it. Kept in shared memory, for registers
/// are scarce.
struct Task {
  Sequence sequence;
  Slots slots;
  int head;        ///< value head
  int query_head;  ///< of q and k
  int row0;        ///< first row of the state, and first column of v and out, of this CTA
  int chunks;

  /// Rank of this CTA where V is split, else 0.
  constexpr int rank() const { return row0 / kHalf; }
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
  Triangle lower[2][2];  ///< A of the blocks on the diagonal, of every finishing warpgroup
  HeadGate gate;
  alignas(16) float remainder[kHeadDim];  ///< decay from the middle of the last chunk's block 1 to the end
  alignas(8) uint64_t loaded[kStages];    ///< raw tiles have landed
  uint64_t half_scaled[kStages];          ///< where V is split: what this CTA does for `scaled` of both is done
  uint64_t scaled[kStages];               ///< Operands and the stage's q, k, g and decay are written
  uint64_t consumed[kOperands];           ///< Operands are read
  uint64_t first_inverted[kStages];       ///< block 0 of T is written
  uint64_t inverted[kStages];             ///< T and the token scalars of keys are written
  uint64_t scored[kStages];               ///< P and the token scalars of queries are written
  uint64_t written[kStages];              ///< out stands in the stage, of which the state needs nothing more
};
static_assert(sizeof(Shared) <= 232448);  // 227 KiB, what a CTA of compute capability 9.0 may have

}  // namespace flash_kda::cuda::fused

// Sizes and the shared-memory plan of the fused kernel. Plain C++, read by the host and the kernel.
#pragma once

#include <cstddef>
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

/// With lower_bound >= -5 the gates of 16 tokens are at most 115.4 in log2, and so G falls over a block. q and k of
/// block 0 are kept times 2^(G + kShift), those of block 1, anchored at the chunk's end, times 2^(G - end - kShift):
/// these and their inverses stay within 2^+-58. What the shift does to the products is undone by the token scalars, and
/// that keys for the state have 2^kShift too much by T, which has it too little.
inline constexpr float kShift = 58.0f;
inline constexpr float kShiftFactor = 0x1p58f;

/// Half of the channels of k and q: to the state 64 rows of one product.
struct KeysQueries {
  unsigned char k[kHalfBytes], q[kHalfBytes];
};

/// A chunk in shared memory, in two states: as loaded, and (same bytes) as prepared for the state.
struct Stage {
  alignas(1024) KeysQueries half[2];  ///< raw, then times 2^G, of block 0 shifted
  unsigned char g[kTileBytes];        ///< raw g, then k * 2^(end - G + kShift)
  unsigned char v[kTileBytes];        ///< then out
  unsigned char square[kHalfBytes];   ///< [32, 64]: columns 0...31 T transposed / kShiftFactor, 32...63 P; 16x16 blocks
                                      ///< of zeros stay
  float decay[kHeadDim];              ///< of the whole chunk
  /// R is the first times v minus the second times S k~: beta / |k|, and that / |k|, of block 0 / kShiftFactor.
  alignas(16) float beta[kChunk][2];
  /// What S q~ and what U P^T is to be multiplied by in out: scale / |q|, shifted back.
  alignas(16) float query_norm[kChunk][2];
};

/// What the triangular products of a chunk need besides its stage, one half of the channels: k and q of block 1 times
/// 2^(G - end - kShift), and k of block 0 times 2^(-G - kShift). As 64 rows it is the left operand of the
/// products with block 1 in rows 16 ... 31 and 48 ... 63, where the stage's KeysQueries has block 1 too.
struct OperandsHalf {
  alignas(1024) unsigned char first_down[kBlock * 128];
  unsigned char second_k[kBlock * 128];
  float query_square_sum[8][kChunk];  ///< of every scaling warp; where V is not split, only in the first half
  unsigned char unused[1024];
  unsigned char second_q[kBlock * 128];
};
static_assert(sizeof(OperandsHalf) == std::size_t{4} * kBlock * 128);
struct Operands {
  OperandsHalf half[2];
};

/// Per-head constants of |log2 gate| = 1 / (2^(-x) / s + 1 / s), x = (g + bias) * slope, s = its largest
/// value.
struct GateConstants {
  float slope;
  float inverse_scale;      ///< 1 / s
  float log_inverse_scale;  ///< log2(1 / s)
};

/// A 16x16 matrix by columns. The pitch keeps accesses by rows and by columns free of bank conflicts.
struct Triangle {
  alignas(16) float column[kBlock][kBlock + 4];
};

/// A_10 as the sum of two of bf16: a lane's fragments.
struct BlockBelow {
  alignas(16) uint32_t high[32][4], low[32][4];
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
  // Of every finishing warpgroup: A of the blocks on the diagonal, and of the one below.
  Triangle lower[2][2];
  BlockBelow below[2];
  GateConstants gate;
  alignas(8) uint64_t loaded[kStages];  ///< raw tiles have landed
  uint64_t half_scaled[kStages];        ///< where V is split: what this CTA does for `scaled` of both is done
  uint64_t scaled[kStages];             ///< Operands and the stage's q, k, g and decay are written
  uint64_t consumed[kOperands];         ///< Operands are read
  uint64_t diagonal_inverted[kStages];  ///< the blocks of T on the diagonal and what follows from keys is written
  uint64_t inverted[kStages];           ///< all of T and the token scalars of keys are written
  uint64_t scored[kStages];             ///< P and the token scalars of queries are written
  uint64_t written[kStages];            ///< out stands in the stage, of which the state needs nothing more
};
static_assert(sizeof(Shared) <= 230400);  // 227 KiB, what a CTA of compute capability 9.0 may have, less alignment

}  // namespace flash_kda::cuda::fused

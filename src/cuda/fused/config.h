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

/// A CTA is five warpgroups, so that with warps 0 ... 3 of each on the four schedulers of a multiprocessor every
/// scheduler has the same mixture. One that walks a sequence: two of the state, 64 rows (V) each, two that scale, one
/// that finishes. One that helps: one that moves, one that finishes, two that scale, one that finishes.
inline constexpr int kThreads = 5 * kWarpgroup;
inline constexpr int kStateGroups = 2, kScaleGroups = 2;
inline constexpr int kScalingWarps = 4 * kScaleGroups;
inline constexpr int kSlicesPerWarp = kSlices / kScalingWarps;
/// A thread's in a CTA that walks, after the warpgroups have shared out what they were launched with.
inline constexpr int kStateRegisters = 160, kScaleRegisters = 48, kFinishRegisters = 64;
/// setmaxnreg moves only what the launch gives: to every thread the same, a multiple of 8. What does not fit hangs.
static_assert(kStateGroups * kStateRegisters + kScaleGroups * kScaleRegisters + kFinishRegisters <=
              kThreads / kWarpgroup * (65536 / kThreads / 8 * 8));

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

/// A chunk in shared memory, in two states: as loaded, and (same bytes) as prepared for the state. All before v is the
/// package that a CTA that helps makes for one that walks.
struct Stage {
  alignas(1024) KeysQueries half[2];  ///< raw, then times 2^G, of block 0 shifted
  unsigned char g[kTileBytes];        ///< raw g, then k * 2^(end - G + kShift)
  unsigned char square[kHalfBytes];   ///< [32, 64]: columns 0...31 T transposed / kShiftFactor, 32...63 P; 16x16 blocks
                                      ///< of zeros stay
  float decay[kHeadDim];              ///< of the whole chunk
  /// R is the first times v minus the second times S k~: beta / |k|, and that / |k|, of block 0 / kShiftFactor.
  alignas(16) float beta[kChunk][2];
  /// What S q~ and what U P^T is to be multiplied by in out: scale / |q|, shifted back.
  alignas(16) float query_norm[kChunk][2];
  alignas(1024) unsigned char v[kTileBytes];  ///< then out
};
inline constexpr int kPackageBytes = offsetof(Stage, v);

/// What the triangular products of a chunk need besides its stage, one half of the channels: k and q of block 1 times
/// 2^(G - end - kShift), and k of block 0 times 2^(-G - kShift). As 64 rows it is the left operand of the
/// products with block 1 in rows 16 ... 31 and 48 ... 63, where the stage's KeysQueries has block 1 too.
struct OperandsHalf {
  alignas(1024) unsigned char first_down[kBlock * 128];
  unsigned char second_k[kBlock * 128];
  float query_square_sum[kScalingWarps][kChunk];  ///< of every scaling warp, only in the first half
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

/// A chunk of a task may be given by the helping CTA of class chunk % kClasses: so many can help one task.
inline constexpr int kClasses = 3;
/// Packages in the workspace for each helping CTA: those it makes and those not yet taken.
inline constexpr int kPackages = 24;
/// A helping CTA takes chunks that are at least so far ahead of what the walking one has asked for: about what it does
/// meanwhile.
inline constexpr int kLead = 8;
/// Threads of a helping CTA that give packages, in turn.
inline constexpr int kGivingThreads = 3;
/// Further ahead than this the board has no place.
inline constexpr int kEntries = 32;

/// Where the CTA that walks a task and those that help it meet, in the workspace; all zeros before the launch. Nobody
/// waits for anybody: a chunk that is not given when it is asked for is prepared by who asks.
struct Board {
  /// [chunk % kEntries]: chunk + 1 of a package that is complete, its number in the upper half.
  uint64_t given[kEntries];
  uint32_t asked;  ///< chunks that the walking CTA has asked for; packages of all but the last kStages are read
  unsigned char unused[124];
};

/// The workspace: boards of all tasks, then packages.
constexpr int64_t package_offset(int64_t tasks, int64_t package) {
  return tasks * static_cast<int64_t>(sizeof(Board)) + package * kPackageBytes;
}

/// One sequence of one value head. Kept in shared memory, for registers are scarce.
struct Task {
  Sequence sequence;
  Slots slots;
  int head;        ///< value head
  int query_head;  ///< of q and k
  int chunks;
  GateConstants gate;
  Board* board;  ///< or null: nobody helps

  /// Tokens of `chunk` that belong to the sequence, up to 32.
  constexpr int valid_tokens(int chunk) const {
    const int left = static_cast<int>(sequence.length) - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
};

/// What a stage of a helping CTA is for. It lies where v is in one that walks.
struct Order {
  alignas(16) float bias[kHeadDim];  ///< dt_bias of the head
  Task task;
  int chunk;    ///< -1: there are no more
  int package;  ///< number, where it goes
};
static_assert(sizeof(Order) <= kTileBytes);

/// What a CTA is for: to walk a task by itself, to walk one with the help of others, or to help.
enum class Role { kAlone, kHelped, kHelping };

struct Shared {
  Stage stage[kStages];
  Operands operands[kOperands];
  Task task;          ///< of a CTA that walks
  int turn[kStages];  ///< helped: of the stage's chunk among those that the CTA prepares itself, or -1: it is given
  // Of every finishing warpgroup, of which a CTA that helps has two: A of the blocks on the diagonal, and of the one
  // below.
  Triangle lower[2][2];
  BlockBelow below[2];
  alignas(8) uint64_t loaded[kStages];  ///< raw tiles have landed
  uint64_t scaled[kStages];      ///< Operands and the stage's q, k, g and decay are written, or the package is here
  uint64_t consumed[kOperands];  ///< Operands are read
  uint64_t diagonal_inverted[kStages];  ///< the blocks of T on the diagonal and what follows from keys is written
  uint64_t inverted[kStages];           ///< all of T and the token scalars of keys are written
  uint64_t scored[kStages];             ///< P and the token scalars of queries are written
  uint64_t written[kStages];            ///< the stage needs nothing more than out to be stored, or has become a package
};
static_assert(sizeof(Shared) <= 230400);  // 227 KiB, what a CTA of compute capability 9.0 may have, less alignment

}  // namespace flash_kda::cuda::fused

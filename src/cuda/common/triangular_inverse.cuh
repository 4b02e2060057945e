// Inverse of a unit lower triangular 16x16 matrix by forward substitution in fp32: exact up to rounding, and stable for
// near-parallel keys, where a Neumann product is not.
#pragma once

namespace flash_kda::cuda {

/// Column `column` of (I + A)^-1 times `factor`, called by one thread a column. lower[j][i] holds A_ij for j < i (the
/// transpose, so that one column of A is contiguous); what stands at j >= i is not read. Reads shared memory, 16-byte
/// aligned rows.
template <int kPitch>
__device__ __forceinline__ void inverse_column(float (&x)[16], const float (&lower)[16][kPitch], int column,
                                               float factor) {
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = i == column ? factor : 0.0f;
#pragma unroll
  for (int j = 0; j < 15; ++j) {
#pragma unroll
    for (int i4 = (j + 1) / 4; i4 < 4; ++i4) {
      const float4 a = *reinterpret_cast<const float4*>(&lower[j][4 * i4]);
      if (4 * i4 + 0 > j) x[4 * i4 + 0] -= a.x * x[j];
      if (4 * i4 + 1 > j) x[4 * i4 + 1] -= a.y * x[j];
      if (4 * i4 + 2 > j) x[4 * i4 + 2] -= a.z * x[j];
      if (4 * i4 + 3 > j) x[4 * i4 + 3] -= a.w * x[j];
    }
  }
}

}  // namespace flash_kda::cuda

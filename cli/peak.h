// The machine's fp32 peak, measured.
#pragma once

namespace flash_kda::cli {

/// Fused multiply-adds that `threads` threads do at once, on the widest vectors of the machine, in operations a second
/// (two a multiply-add): the best of several measurements, in about 0.4 seconds together.
double measure_fp32_peak(int threads);

}  // namespace flash_kda::cli

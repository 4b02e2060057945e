// Which instruction sets Highway compiles the kernels for. Include this before any header of Highway.
//
// The kernels are built with Highway's headers alone (the library must be self-contained, and distributions ship libhwy
// only as a shared object): a kernel source includes itself once per target through hwy/foreach_target.h and offers the
// results in a table indexed by cpu::InstructionSet; nothing of Highway runs at run time.
#pragma once

// Targets without a member of cpu::InstructionSet are left out, to keep the build small. What remains: AVX-512, AVX2,
// and the baseline of the compilation (SSE2 as plain C++ on x86-64, NEON on aarch64).
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSE4 | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

// Highway's own debug assertions, on under sanitizers, would need libhwy.
#define HWY_IS_DEBUG_BUILD 0

#include "hwy/detect_targets.h"

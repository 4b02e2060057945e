// Threads of the CPU backend: OpenMP, so that one pool serves the whole process.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace flash_kda::cpu {

/// Threads that a call without num_threads uses.
inline int default_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace flash_kda::cpu

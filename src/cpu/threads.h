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

/// Which thread of the enclosing parallel region this is.
inline int thread_index() {
#if defined(_OPENMP)
  return omp_get_thread_num();
#else
  return 0;
#endif
}

}  // namespace flash_kda::cpu

// Threads of the CPU backend: OpenMP, so that one pool serves the whole process.
#pragma once

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace flash_kda::cpu {

/// More than this many threads a call does not start: where the system has no more, OpenMP ends the process.
inline constexpr int kMostThreads = 1024;

/// To be called before a call first uses more than one thread.
void expect_pool();

/// Whether this process was forked from one that had used threads. They did not come with it, but GNU's OpenMP, which
/// does not notice, would wait for them: a call must do with one thread.
bool pool_is_missing();

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

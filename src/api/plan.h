// Params + machine -> plan: which path a call takes, with which sizes. A pure function over printable structs, so every
// choice can be tested and explained without the machine it is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "api/params.h"
#include "cpu/instruction_set.h"
#include "cpu/threads.h"

namespace flash_kda {

/// One way of computing the operator. Every value is a folder or file below src/.
enum class Path {
  kReference,      ///< cpu/reference: fp64 recurrence
  kCpuChunked,     ///< cpu/chunked: chunks of tokens, fp32
  kCpuRecurrent,   ///< cpu/recurrent: token by token, fp32
  kCudaTwoKernel,  ///< cuda/two_kernel: prepare, recurrence
  kCudaFused,      ///< cuda/fused: one kernel for sm_90a
};

const char* name_of(Path path);

/// What the plan needs to know about where the call runs.
struct Machine {
  int cpu_threads = 1;                                                   ///< of a call that asks for no number
  int most_cpu_threads = cpu::kMostThreads;                              ///< of one that asks for too many
  cpu::InstructionSet instruction_set = cpu::InstructionSet::kPortable;  ///< the best one usable here

  bool has_gpu = false;    ///< device `Params::device` can be used
  std::string why_no_gpu;  ///< what is missing, if !has_gpu
  std::string gpu_name;
  int compute_capability = 0;  ///< 10 * major + minor
  int multiprocessors = 0;
};

struct Plan {
  Path path = Path::kReference;
  const char* reason = "";       ///< why this path and no other
  int chunk = 1;                 ///< tokens per step of the state
  int64_t tasks = 0;             ///< independent pieces of work: CPU tasks, or CTAs of the state kernel
  int value_split = 1;           ///< tasks that share one (sequence, head), each with V / value_split rows of the state
  int helpers = 0;               ///< cuda/fused: further CTAs, which prepare chunks for those of the tasks
  int threads = 0;               ///< CPU threads, or threads of a CTA of the state kernel
  int64_t chunk_bound = 0;       ///< CUDA: at least the number of chunks of all sequences together
  size_t workspace_bytes = 0;    ///< CUDA: device memory that the launch can use
  bool needs_workspace = false;  ///< all of it; otherwise with less it is only slower
  cpu::InstructionSet instruction_set = cpu::InstructionSet::kPortable;  ///< CPU paths
};

/// Throws Error if no path supports the call.
Plan make_plan(const Params& params, const Machine& machine);

/// "path=cpu/chunked chunk=16 ... reason=..." on one line.
std::string to_string(const Plan& plan);

}  // namespace flash_kda

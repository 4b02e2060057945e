#include "cpu/instruction_set.h"

namespace flash_kda::cpu {

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable: return "portable";
    case InstructionSet::kAvx2: return "avx2";
    case InstructionSet::kAvx512: return "avx512";
  }
  return "unknown";
}

const std::vector<InstructionSet>& usable_instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> usable;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
      usable.push_back(InstructionSet::kAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) usable.push_back(InstructionSet::kAvx2);
#endif
    usable.push_back(InstructionSet::kPortable);
    return usable;
  }();
  return sets;
}

}  // namespace flash_kda::cpu

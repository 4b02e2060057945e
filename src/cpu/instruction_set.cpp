#include "cpu/instruction_set.h"

#include "cpu/vector/targets.h"

namespace flash_kda::cpu {

const char* name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

const std::vector<InstructionSet>& usable_instruction_sets() {
  static const std::vector<InstructionSet> sets = [] {
    std::vector<InstructionSet> usable;
    // A body that the compiler's own baseline covers is not compiled a second time: then it is the portable one.
#if defined(__x86_64__)
    if ((HWY_TARGETS & HWY_AVX3) != 0 && HWY_STATIC_TARGET != HWY_AVX3 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
      usable.push_back(InstructionSet::kAvx512);
    if ((HWY_TARGETS & HWY_AVX2) != 0 && HWY_STATIC_TARGET != HWY_AVX2 && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
      usable.push_back(InstructionSet::kAvx2);
#endif
    usable.push_back(InstructionSet::kPortable);
    return usable;
  }();
  return sets;
}

}  // namespace flash_kda::cpu

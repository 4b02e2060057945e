// Which instruction sets the fast CPU backend was compiled for and this machine has.
#pragma once

#include <vector>

namespace flash_kda::cpu {

/// One compiled body of the fast CPU backend each.
enum class InstructionSet { kPortable, kAvx2, kAvx512 };

const char* name_of(InstructionSet set);

/// Compiled and present on this machine, best first; the last one is kPortable.
const std::vector<InstructionSet>& usable_instruction_sets();

}  // namespace flash_kda::cpu

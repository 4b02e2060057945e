#include "cpu/chunked/chunked.h"

#include "cpu/reference/reference.h"

namespace flash_kda::cpu {

void run_chunked(const Params& params, const Plan&) { run_reference(params); }

}  // namespace flash_kda::cpu

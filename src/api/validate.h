// Arguments -> validation: turns what the caller passed into Params, or throws Error and changes nothing.
#pragma once

#include "api/params.h"
#include "flash_kda/flash_kda.h"

namespace flash_kda {

/// What a call is about to do, and hence which arguments must be there.
enum class Purpose {
  kRun,      ///< pointers, overlap and contents in host memory are checked
  kInquire,  ///< workspace size or description: shapes, types and options only; data pointers may be null
};

/// Throws Error. `args` must come from flash_kda_*_args_init (its struct_size is checked first).
Params validate(const flash_kda_forward_args& args, Purpose purpose);
Params validate(const flash_kda_decode_args& args, Purpose purpose);

/// Throws Error, naming the first bad entry of cu_seqlens. `host_copy` holds its N + 1 entries in host memory.
void check_cu_seqlens(const Params& params, const void* host_copy);

}  // namespace flash_kda

#include "cuda/plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "api/error.h"
#include "cuda/fused/config.h"
#include "cuda/two_kernel/config.h"

namespace flash_kda::cuda {
namespace {

/// TMA and bulk copies take addresses and strides in multiples of this many bytes.
constexpr int64_t kAlignment = 16;

void require_aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0)
    fail(FLASH_KDA_ERROR_VALUE, "{}: got address {}, accepted on CUDA is a multiple of {} bytes", name, data,
         kAlignment);
}

/// `elements`: the stride of an extent that moves.
void require_aligned_stride(const char* name, const char* dimension, int64_t extent, int64_t elements,
                            flash_kda_dtype dtype) {
  const int64_t bytes = elements * size_of(dtype);
  if (extent > 1 && bytes % kAlignment != 0)
    fail(FLASH_KDA_ERROR_VALUE,
         "{}: got a stride of {} elements ({} bytes) in dimension {}, accepted on CUDA is a multiple of {} bytes", name,
         elements, bytes, dimension, kAlignment);
}

void require_aligned(const char* name, const TokenTensor& x, const Params& p, int heads) {
  require_aligned(name, x.data);
  require_aligned_stride(name, "B", p.B, x.stride_batch, x.dtype);
  require_aligned_stride(name, "T", p.T, x.stride_token, x.dtype);
  require_aligned_stride(name, "H", heads, x.stride_head, x.dtype);
}

void require_aligned(const char* name, const StateTensor& x, const Params& p) {
  require_aligned(name, x.data);
  require_aligned_stride(name, "N", x.slots, x.stride_slot, x.dtype);
  require_aligned_stride(name, "HV", p.HV, x.stride_head, x.dtype);
  require_aligned_stride(name, "V", p.V, x.stride_row, x.dtype);
}

/// The call is one that the two-kernel path computes; otherwise the refusal names what it is not.
void require_supported(const Params& p) {
  // `got` is a format of `value`, which only a refusal pays for.
  const auto require = [](bool supported, const char* argument, const char* got, int64_t value, const char* accepted) {
    if (!supported)
      fail(FLASH_KDA_ERROR_VALUE, "{}: got {}, accepted by the CUDA kernels is {} (the CPU backend takes everything)",
           argument, fmt::format(fmt::runtime(got), value), accepted);
  };
  const auto require_type = [](std::initializer_list<flash_kda_dtype> types, const char* argument, flash_kda_dtype got,
                               const char* accepted) {
    if (std::find(types.begin(), types.end(), got) == types.end())
      fail(FLASH_KDA_ERROR_TYPE,
           "{}: got dtype {}, accepted by the CUDA kernels is {} (the CPU backend takes everything)", argument,
           name_of_dtype(got), accepted);
  };
  require(p.op == Operator::kForward, "operator", "decode", 0, "forward");
  require(p.K == two_kernel::kHeadDim, "q", "K = {}", p.K, "K = 128");
  require(p.V == two_kernel::kHeadDim, "v", "V = {}", p.V, "V = 128");
  require(p.gate == FLASH_KDA_GATE_BOUNDED, "gate", p.gate == FLASH_KDA_GATE_SOFTPLUS ? "{} (softplus)" : "{} (log)",
          p.gate, "1 (bounded)");
  require(p.M == 0, "checkpoints", "{} of them", p.M, "none");
  require_type({FLASH_KDA_BF16}, "q", p.q.dtype, "bfloat16");
  require_type({FLASH_KDA_BF16}, "out", p.out.dtype, "bfloat16");
  require_type({FLASH_KDA_BF16, FLASH_KDA_F32}, "g", p.g.dtype, "bfloat16 or float32");
  require_type({FLASH_KDA_BF16, FLASH_KDA_F32}, "beta", p.beta.dtype, "bfloat16 or float32");
  require(p.T <= std::numeric_limits<int32_t>::max(), "q", "T = {}", p.T, "T below 2^31");
  require_aligned("q", p.q, p, p.H);
  require_aligned("k", p.k, p, p.H);
  require_aligned("v", p.v, p, p.HV);
  require_aligned("g", p.g, p, p.HV);
  require_aligned("out", p.out, p, p.HV);
  require_aligned("dt_bias", p.dt_bias);
  require_aligned("initial_state", p.initial_state, p);
  require_aligned("final_state", p.final_state, p);
}

/// Why the fused kernel cannot take a call that the two-kernel path can, or nullptr.
const char* reason_against_fused(const Params& p, const Machine& machine) {
  if (machine.compute_capability != 90) return "the fused kernel is for compute capability 9.0";
  if (p.g.dtype != FLASH_KDA_BF16) return "the fused kernel takes g in bfloat16";
  return nullptr;
}

/// Parts of V that one (sequence, head) is spread over: as many as there are multiprocessors for.
int value_split_of(const Params& p, const Machine& machine) {
  int split = 1;
  while (split < two_kernel::kHeadDim / two_kernel::kRowsPerWarp && p.N * p.HV * split * 2 <= machine.multiprocessors)
    split *= 2;
  return split;
}

/// CTAs of the fused kernel that prepare chunks for those that walk a task: as many as there are multiprocessors left
/// for, where sequences are so long that they pay. Setting them up costs every task about as much as they gain over 12
/// chunks when there are plenty of them, and over more the fewer they are. Measured on an H200, fp32 state, one
/// sequence; ms without helpers / with them:
///
///   H (tasks)  helpers     T 512        T 768        T 1024       T 2048       T 4096
///   12         36       .046 / .044  .062 / .052  .078 / .061               .270 / .168
///   32         96       .046 / .045  .062 / .054  .078 / .064               .270 / .173
///   64         68       .048 / .050  .064 / .058  .080 / .070  .144 / .117  .271 / .208
///   96         36       .051 / .053  .067 / .067  .083 / .082  .147 / .137  .273 / .245
///   120        12       .052 / .057               .085 / .088  .149 / .153  .277 / .278
int helpers_of(const Params& p, int64_t tasks, const Machine& machine) {
  const int64_t helpers = std::min(machine.multiprocessors - tasks, tasks * fused::kClasses);
  if (helpers <= 0) return 0;
  const int64_t mean_tokens = p.cu_seqlens == nullptr ? p.T : p.T / p.N;
  const int64_t least_chunks = 12 + 10 * tasks / helpers;
  return mean_tokens >= least_chunks * fused::kChunk ? static_cast<int>(helpers) : 0;
}

}  // namespace

Plan make_plan(const Params& p, const Machine& machine) {
  if (!machine.has_gpu)
    fail(FLASH_KDA_ERROR_DEVICE, "device: got CUDA device {}, but {}", p.device, machine.why_no_gpu);
  if (machine.compute_capability < 90)
    fail(FLASH_KDA_ERROR_DEVICE, "device: got {} with compute capability {}.{}, accepted is 9.0 or later",
         machine.gpu_name, machine.compute_capability / 10, machine.compute_capability % 10);
  require_supported(p);

  const bool automatic = p.cuda_path == FLASH_KDA_CUDA_PATH_AUTO;
  const char* why_not_fused = reason_against_fused(p, machine);
  if (p.cuda_path == FLASH_KDA_CUDA_PATH_FUSED && why_not_fused != nullptr)
    fail(FLASH_KDA_ERROR_VALUE, "cuda_path: got 2 (fused), accepted here is 0 or 1: {}", why_not_fused);
  // 22 states on an H200: 8.8 us, the fused kernel 11.4.
  if (automatic && why_not_fused == nullptr && p.T == 0) why_not_fused = "without tokens more CTAs move a state faster";
  Plan plan;
  if (p.cuda_path == FLASH_KDA_CUDA_PATH_FUSED || (automatic && why_not_fused == nullptr)) {
    plan.path = Path::kCudaFused;
    plan.reason = automatic ? "the fused kernel can take it" : "asked for";
    plan.chunk = fused::kChunk;
    plan.tasks = p.N * p.HV;
    plan.helpers = helpers_of(p, plan.tasks, machine);
    plan.threads = fused::kThreads;
    if (plan.helpers > 0)
      plan.workspace_bytes =
          static_cast<size_t>(fused::package_offset(plan.tasks, int64_t{plan.helpers} * fused::kPackages));
  } else {
    plan.path = Path::kCudaTwoKernel;
    plan.reason = automatic ? why_not_fused : "asked for";
    plan.chunk = two_kernel::kTile;
    plan.value_split = value_split_of(p, machine);
    plan.tasks = p.N * p.HV * plan.value_split;
    plan.threads = two_kernel::recurrence_threads(p.V / plan.value_split);
    plan.chunk_bound = two_kernel::slot_bound(p);
    plan.needs_workspace = true;
    plan.workspace_bytes = static_cast<size_t>(two_kernel::image_offset(plan.chunk_bound, 0, p.HV));
  }
  constexpr int64_t kLargestGrid = std::numeric_limits<int32_t>::max();
  if (plan.tasks > kLargestGrid || plan.chunk_bound * p.HV > kLargestGrid)
    fail(FLASH_KDA_ERROR_VALUE,
         "q: got {} sequences and {} tiles of {} heads, accepted on CUDA is fewer than 2^31 of either in all", p.N,
         plan.chunk_bound, p.HV);
  return plan;
}

}  // namespace flash_kda::cuda

/* FlashKDA: Kimi Delta Attention (KDA) for CPUs and CUDA GPUs. Public C interface (C11).
 *
 * The operator, per sequence and value head, with a state S of shape [V, K]:
 *
 *     a_t = exp(gamma_t)                  per-channel decay, gamma_t <= 0 from the gate form
 *     S   = S * diag(a_t)
 *     u_t = beta_t * (v_t - S k_t)        what the state gets wrong about k_t
 *     S   = S + u_t k_t^T
 *     o_t = scale * S q_t
 *
 * Source of the formula: Kimi Linear (Moonshot AI, arXiv:2510.26692), section 3; docs/operator.md repeats it in full.
 *
 * Notation of shapes: B batch, T tokens, H query/key heads, HV value heads (HV % H == 0; value head h reads query/key
 * head h / (HV / H)), K and V head dimensions, N sequences (N = B, or the number of packed sequences).
 *
 * Rules that hold for every function:
 *   - Argument structs are filled by their init function first, then by the caller; unset tensors are absent.
 *   - A refused call changes nothing and flash_kda_last_error() says what was given and what is accepted.
 *   - Inputs are never written. Device memory is never allocated, and the caller's current device is left as it was.
 *   - Streams are never synchronised, unless check_cu_seqlens asks for it.
 *   - Calls from several threads and on several streams are safe as long as each has its own workspace and outputs.
 */
#ifndef FLASH_KDA_FLASH_KDA_H_
#define FLASH_KDA_FLASH_KDA_H_

#include <stddef.h>
#include <stdint.h>

#include "flash_kda/version.h"

#if defined(_WIN32)
#define FLASH_KDA_API
#else
#define FLASH_KDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum flash_kda_status {
  FLASH_KDA_OK = 0,
  FLASH_KDA_ERROR_TYPE = 1,    /* wrong kind of argument or data type */
  FLASH_KDA_ERROR_VALUE = 2,   /* shape, stride, alignment, overlap or range */
  FLASH_KDA_ERROR_DEVICE = 3,  /* no such device, an architecture without a kernel, no driver, not built in */
  FLASH_KDA_ERROR_CUDA = 4,    /* a CUDA call failed; the message names the call, its code and its place */
  FLASH_KDA_ERROR_MEMORY = 5,  /* host memory ran out */
  FLASH_KDA_ERROR_INTERNAL = 6 /* a defect of this library */
} flash_kda_status;

typedef enum flash_kda_dtype {
  FLASH_KDA_F32 = 1,
  FLASH_KDA_BF16 = 2,
  FLASH_KDA_F16 = 3,
  FLASH_KDA_F64 = 4, /* outputs and states of the reference backend only */
  FLASH_KDA_I32 = 5,
  FLASH_KDA_I64 = 6,
  FLASH_KDA_BOOL = 7 /* one byte, 0 is false */
} flash_kda_dtype;

#define FLASH_KDA_MAX_RANK 4

/* A strided view of memory that the caller owns. Absent when data is NULL and every extent is unset (rank 0).
 * A tensor without elements (some extent 0) may have data == NULL. */
typedef struct flash_kda_tensor {
  void* data;
  int32_t dtype; /* flash_kda_dtype */
  int32_t rank;  /* 0 = absent, else 1 to FLASH_KDA_MAX_RANK */
  int64_t shape[FLASH_KDA_MAX_RANK];
  int64_t strides[FLASH_KDA_MAX_RANK]; /* in elements; may be 0 or padded, never negative */
} flash_kda_tensor;

typedef enum flash_kda_backend {
  FLASH_KDA_BACKEND_CPU = 1,      /* chunked form, fp32, several threads; tensors in host memory */
  FLASH_KDA_BACKEND_CUDA = 2,     /* tensors in the memory of GPU `device` */
  FLASH_KDA_BACKEND_REFERENCE = 3 /* the recurrence in fp64, the oracle of every test; tensors in host memory */
} flash_kda_backend;

/* Which kernels compute a forward call on CUDA. flash_kda_forward_describe says what a call would take and why; a path
 * that is asked for and does not support the call is refused. */
typedef enum flash_kda_cuda_path {
  FLASH_KDA_CUDA_PATH_AUTO = 0,       /* the library chooses one that supports the call */
  FLASH_KDA_CUDA_PATH_TWO_KERNEL = 1, /* prepare and recurrence: compute capability 9.0 and later */
  FLASH_KDA_CUDA_PATH_FUSED = 2       /* one kernel: compute capability 9.0, bfloat16 g */
} flash_kda_cuda_path;

/* How the log-gate gamma (natural log, <= 0) follows from the raw input g, A_log [HV] and dt_bias [HV, K]. */
typedef enum flash_kda_gate {
  FLASH_KDA_GATE_BOUNDED = 1,  /* lower_bound * sigmoid(exp(A_log) * (g + dt_bias)) */
  FLASH_KDA_GATE_SOFTPLUS = 2, /* -exp(A_log) * softplus(g + dt_bias) */
  FLASH_KDA_GATE_LOG = 3       /* g itself; A_log and dt_bias must be absent */
} flash_kda_gate;

typedef enum flash_kda_beta {
  FLASH_KDA_BETA_LOGITS = 1,        /* sigmoid(beta) */
  FLASH_KDA_BETA_PROBABILITIES = 2, /* beta as given */
  FLASH_KDA_BETA_TWICE_SIGMOID = 3  /* 2 * sigmoid(beta): negative eigenvalues allowed */
} flash_kda_beta;

/* scale = 1 / sqrt(K) */
#define FLASH_KDA_DEFAULT_SCALE (-3.402823466e+38f)

/* Prefill: the operator over whole sequences.
 *
 * Floating-point inputs are F32, BF16 or F16; q, k and v share one type. The last dimension is contiguous, the others
 * may be strided. The states of sequence n are row n of [N, HV, V, K], or, with an index tensor, slot index[n] of a
 * pool [slots, HV, V, K]. A negative read index (or one >= slots) means a zero state, such a write index "not stored",
 * both "padded row": its outputs are zero and nothing else is touched. A row may read and write the same slot. A slot
 * that one row reads and another row of the same call writes is a race, which nothing checks: what the reader computes
 * is undefined. Two rows that write one slot leave parts of either state. */
typedef struct flash_kda_forward_args {
  size_t struct_size; /* set by flash_kda_forward_args_init */

  /* Inputs */
  flash_kda_tensor q;          /* [B, T, H, K] */
  flash_kda_tensor k;          /* [B, T, H, K] */
  flash_kda_tensor v;          /* [B, T, HV, V] */
  flash_kda_tensor g;          /* [B, T, HV, K] raw gate, see flash_kda_gate */
  flash_kda_tensor beta;       /* [B, T, HV] see flash_kda_beta */
  flash_kda_tensor A_log;      /* [HV] F32; absent: factor 1 */
  flash_kda_tensor dt_bias;    /* [HV, K] or [HV * K] F32; absent: 0 */
  flash_kda_tensor cu_seqlens; /* [N + 1] I32 or I64, needs B = 1; absent: N = B sequences of T tokens */

  /* States, F32 or BF16 (F16 on the CPU); initial and final may differ in type, and may be the same memory */
  flash_kda_tensor initial_state;     /* [N, HV, V, K] or pool; absent: zeros */
  flash_kda_tensor final_state;       /* [N, HV, V, K] or pool, written; absent: not stored */
  flash_kda_tensor read_index;        /* [N] I32, slots of initial_state; absent: row n */
  flash_kda_tensor write_index;       /* [N] I32, slots of final_state; absent: row n */
  flash_kda_tensor has_initial_state; /* [N] BOOL, false: start from zero; absent: all true */

  /* Checkpoints: the state after `offset` tokens of a sequence, a multiple of 64; those past its end are ignored */
  flash_kda_tensor checkpoints;      /* [M, 2] I32: (sequence, offset); absent: none */
  flash_kda_tensor checkpoint_state; /* [M, HV, V, K] or pool, written */
  flash_kda_tensor checkpoint_index; /* [M] I32, slots of checkpoint_state; absent: row m */

  /* Output */
  flash_kda_tensor out; /* [B, T, HV, V], F32, BF16 or F16 */

  /* Options */
  float scale;              /* finite, or FLASH_KDA_DEFAULT_SCALE */
  float lower_bound;        /* of the bounded gate, -5 <= lower_bound < 0; default -5 */
  int32_t gate;             /* flash_kda_gate; default bounded */
  int32_t beta_form;        /* flash_kda_beta; default logits */
  int32_t l2norm;           /* nonzero (default): q and k rows are divided by sqrt(|x|^2 + 1e-6); |x|^2 below 2^128 */
  int32_t batch_invariant;  /* nonzero: a sequence alone and in a batch agree bitwise; default 0 */
  int32_t check_cu_seqlens; /* nonzero: CUDA reads it back first (synchronises); the CPU always checks; default 0 */

  /* Execution */
  int32_t backend;       /* flash_kda_backend; default CPU */
  int32_t cuda_path;     /* flash_kda_cuda_path, of no effect on the CPU; default automatic */
  int32_t device;        /* CUDA device ordinal; default 0 */
  int32_t num_threads;   /* CPU: at most this many, and 1024; 0 (default) uses what OpenMP would. In a process that was
                            forked from one whose calls had used threads it is 1 */
  void* stream;          /* cudaStream_t; NULL is the default stream */
  void* workspace;       /* device memory, 256-byte aligned, of flash_kda_forward_workspace_size bytes or more */
  size_t workspace_size; /* bytes */
} flash_kda_forward_args;

/* Decode: up to eight tokens a sequence on a state pool that is read and written in place. Equal to forward over the
 * same tokens, within rounding. Members mean what they mean in flash_kda_forward_args. */
typedef struct flash_kda_decode_args {
  size_t struct_size; /* set by flash_kda_decode_args_init */

  flash_kda_tensor q;          /* [B, T, H, K], T <= 8, or B = 1 with cu_seqlens and at most 8 tokens a sequence */
  flash_kda_tensor k;          /* [B, T, H, K] */
  flash_kda_tensor v;          /* [B, T, HV, V] */
  flash_kda_tensor g;          /* [B, T, HV, K] */
  flash_kda_tensor beta;       /* [B, T, HV] */
  flash_kda_tensor A_log;      /* [HV]; may be absent */
  flash_kda_tensor dt_bias;    /* [HV, K] or [HV * K]; may be absent */
  flash_kda_tensor cu_seqlens; /* [N + 1]; may be absent */

  flash_kda_tensor state;             /* [N, HV, V, K], read and written; with read_index a pool [slots, HV, V, K] */
  flash_kda_tensor read_index;        /* [N] I32; absent: sequence n has slot n */
  flash_kda_tensor write_index;       /* [N] I32, with read_index; absent: the slots that are read */
  flash_kda_tensor has_initial_state; /* [N] BOOL; may be absent */

  flash_kda_tensor out; /* [B, T, HV, V] */

  float scale;
  float lower_bound;
  int32_t gate;
  int32_t beta_form;
  int32_t l2norm;
  int32_t batch_invariant;
  int32_t check_cu_seqlens;

  int32_t backend;
  int32_t device;
  int32_t num_threads;
  void* stream;
  void* workspace;
  size_t workspace_size;
} flash_kda_decode_args;

/* Fill *args with absent tensors and the defaults above. */
FLASH_KDA_API void flash_kda_forward_args_init(flash_kda_forward_args* args);
FLASH_KDA_API void flash_kda_decode_args_init(flash_kda_decode_args* args);

/* Run the operator: validate, plan, launch. On CUDA the call returns when the work is enqueued on args->stream. */
FLASH_KDA_API flash_kda_status flash_kda_forward(const flash_kda_forward_args* args);
FLASH_KDA_API flash_kda_status flash_kda_decode(const flash_kda_decode_args* args);

/* Bytes of workspace that the call can use (0 on the CPU). The two kernels refuse less; the fused kernel gives the same
 * bits with less, or with none, and is slower. The workspace members themselves are not looked at, and data pointers
 * may be NULL: shapes, types and options decide. */
FLASH_KDA_API flash_kda_status flash_kda_forward_workspace_size(const flash_kda_forward_args* args, size_t* bytes);
FLASH_KDA_API flash_kda_status flash_kda_decode_workspace_size(const flash_kda_decode_args* args, size_t* bytes);

/* The plan of the call as text, "key=value" pairs separated by spaces, beginning with "path=...", and the reason for
 * that path. At most `capacity` bytes are written, with the terminating NUL. Looks at what the workspace query looks
 * at. */
FLASH_KDA_API flash_kda_status flash_kda_forward_describe(const flash_kda_forward_args* args, char* text,
                                                          size_t capacity);
FLASH_KDA_API flash_kda_status flash_kda_decode_describe(const flash_kda_decode_args* args, char* text,
                                                         size_t capacity);

/* What this build and machine can do, as a JSON object: version, build (compiler, CUDA, source digest), CPU (threads,
 * usable instruction sets, the one in use first), CUDA devices, and why CUDA is unavailable where it is. At most
 * `capacity` bytes are written, with the terminating NUL. */
FLASH_KDA_API flash_kda_status flash_kda_info(char* text, size_t capacity);

/* "major.minor.patch" */
FLASH_KDA_API const char* flash_kda_version(void);

/* The message of this thread's last call that did not return FLASH_KDA_OK; "" if there was none. Valid until the
 * thread's next call. */
FLASH_KDA_API const char* flash_kda_last_error(void);

#ifdef __cplusplus
}
#endif

#endif /* FLASH_KDA_FLASH_KDA_H_ */

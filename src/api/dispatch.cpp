// The C interface: validation -> plan -> launch, and the only place where exceptions become statuses.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "api/error.h"
#include "api/info.h"
#include "api/plan.h"
#include "api/validate.h"
#include "cpu/chunked/chunked.h"
#include "cpu/recurrent/recurrent.h"
#include "cpu/reference/reference.h"
#include "cpu/threads.h"
#include "cuda/backend.h"
#include "flash_kda/flash_kda.h"

namespace flash_kda {
namespace {

thread_local std::string last_error;

/// Run `body`; whatever it throws becomes a status and this thread's message.
template <typename Body>
flash_kda_status guarded(Body body) noexcept {
  try {
    last_error.clear();
    body();
    return FLASH_KDA_OK;
  } catch (const Error& error) {
    last_error = error.what();
    return error.status();
  } catch (const std::bad_alloc&) {
    last_error = "host memory ran out";
    return FLASH_KDA_ERROR_MEMORY;
  } catch (const std::exception& error) {
    last_error = error.what();
    return FLASH_KDA_ERROR_INTERNAL;
  }
}

template <typename T>
T& required(const char* name, T* pointer) {
  if (pointer == nullptr) fail(FLASH_KDA_ERROR_TYPE, "{}: required, but null", name);
  return *pointer;
}

Plan plan_of(const Params& params) {
  if (params.backend == FLASH_KDA_BACKEND_CUDA) return make_plan(params, cuda::describe_device(params.device));
  Machine machine;
  machine.cpu_threads = cpu::default_threads();
  if (cpu::pool_is_missing()) machine.most_cpu_threads = 1;
  machine.instruction_set = cpu::usable_instruction_sets().front();
  return make_plan(params, machine);
}

void launch(const Params& params, const Plan& plan) {
  switch (plan.path) {
    case Path::kReference:
      cpu::run_reference(params, plan.threads);
      return;
    case Path::kCpuChunked:
      cpu::run_chunked(params, plan);
      return;
    case Path::kCpuRecurrent:
      cpu::run_recurrent(params, plan);
      return;
    case Path::kCudaTwoKernel:
    case Path::kCudaFused:
      cuda::launch(params, plan);
      return;
  }
}

template <typename Args>
flash_kda_status run(const Args* args) {
  return guarded([&] {
    const Params params = validate(required("args", args), Purpose::kRun);
    const Plan plan = plan_of(params);
    if (plan.workspace_bytes > 0) {
      if (plan.needs_workspace && (params.workspace == nullptr || params.workspace_size < plan.workspace_bytes))
        fail(FLASH_KDA_ERROR_VALUE, "workspace: got {} bytes at {}, accepted is at least {} bytes",
             params.workspace_size, params.workspace, plan.workspace_bytes);
      if (reinterpret_cast<uintptr_t>(params.workspace) % 256 != 0)
        fail(FLASH_KDA_ERROR_VALUE, "workspace: got address {}, accepted is a multiple of 256", params.workspace);
    }
    launch(params, plan);
  });
}

template <typename Args>
flash_kda_status workspace_size(const Args* args, size_t* bytes) {
  return guarded([&] {
    size_t& result = required("bytes", bytes);
    const Params params = validate(required("args", args), Purpose::kInquire);
    result = plan_of(params).workspace_bytes;
  });
}

void copy_text(const std::string& source, char* text, size_t capacity) {
  required("text", text);
  if (capacity == 0) fail(FLASH_KDA_ERROR_VALUE, "capacity: got 0, accepted is 1 or more bytes");
  const size_t length = std::min(source.size(), capacity - 1);
  std::memcpy(text, source.data(), length);
  text[length] = '\0';
}

template <typename Args>
flash_kda_status describe(const Args* args, char* text, size_t capacity) {
  return guarded([&] {
    const Params params = validate(required("args", args), Purpose::kInquire);
    copy_text(to_string(plan_of(params)), text, capacity);
  });
}

/// The defaults that both argument structs share.
template <typename Args>
void init(Args* args) {
  *args = Args{};
  args->struct_size = sizeof(Args);
  args->scale = FLASH_KDA_DEFAULT_SCALE;
  args->lower_bound = -5.0F;
  args->gate = FLASH_KDA_GATE_BOUNDED;
  args->beta_form = FLASH_KDA_BETA_LOGITS;
  args->l2norm = 1;
  args->backend = FLASH_KDA_BACKEND_CPU;
}

}  // namespace
}  // namespace flash_kda

extern "C" {

void flash_kda_forward_args_init(flash_kda_forward_args* args) { flash_kda::init(args); }
void flash_kda_decode_args_init(flash_kda_decode_args* args) { flash_kda::init(args); }

flash_kda_status flash_kda_forward(const flash_kda_forward_args* args) { return flash_kda::run(args); }
flash_kda_status flash_kda_decode(const flash_kda_decode_args* args) { return flash_kda::run(args); }

flash_kda_status flash_kda_forward_workspace_size(const flash_kda_forward_args* args, size_t* bytes) {
  return flash_kda::workspace_size(args, bytes);
}
flash_kda_status flash_kda_decode_workspace_size(const flash_kda_decode_args* args, size_t* bytes) {
  return flash_kda::workspace_size(args, bytes);
}

flash_kda_status flash_kda_forward_describe(const flash_kda_forward_args* args, char* text, size_t capacity) {
  return flash_kda::describe(args, text, capacity);
}
flash_kda_status flash_kda_decode_describe(const flash_kda_decode_args* args, char* text, size_t capacity) {
  return flash_kda::describe(args, text, capacity);
}

flash_kda_status flash_kda_info(char* text, size_t capacity) {
  return flash_kda::guarded([&] { flash_kda::copy_text(flash_kda::info_json(), text, capacity); });
}

const char* flash_kda_version(void) { return FLASH_KDA_VERSION; }
const char* flash_kda_last_error(void) { return flash_kda::last_error.c_str(); }
}

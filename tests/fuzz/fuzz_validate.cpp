// Argument structs of any content: a small well-formed call from the first bytes, then a few members changed at random.
// Whatever comes of it is refused with a message and without a trace, or runs without touching what is not its own.
#include <fuzzer/FuzzedDataProvider.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/plan.h"
#include "api/validate.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

using Forward = flash_kda_forward_args;
using Decode = flash_kda_decode_args;

[[noreturn]] void fault(const std::string& what) {
  std::fprintf(stderr, "%s\nlast error: %s\n", what.c_str(), flash_kda_last_error());
  std::abort();
}

std::vector<flash_kda_tensor*> tensors_of(Forward& a) {
  return {&a.q,
          &a.k,
          &a.v,
          &a.g,
          &a.beta,
          &a.A_log,
          &a.dt_bias,
          &a.cu_seqlens,
          &a.read_index,
          &a.write_index,
          &a.checkpoints,
          &a.checkpoint_index,
          &a.has_initial_state,
          &a.initial_state,
          &a.final_state,
          &a.checkpoint_state,
          &a.out};
}
std::vector<flash_kda_tensor*> tensors_of(Decode& a) {
  return {&a.q,
          &a.k,
          &a.v,
          &a.g,
          &a.beta,
          &a.A_log,
          &a.dt_bias,
          &a.cu_seqlens,
          &a.read_index,
          &a.write_index,
          &a.has_initial_state,
          &a.state,
          &a.out};
}
std::vector<flash_kda_tensor*> outputs_of(Forward& a) { return {&a.out, &a.final_state, &a.checkpoint_state}; }
std::vector<flash_kda_tensor*> outputs_of(Decode& a) { return {&a.out, &a.state}; }

flash_kda_status call(const Forward& a) { return flash_kda_forward(&a); }
flash_kda_status call(const Decode& a) { return flash_kda_decode(&a); }
flash_kda_status inquire(const Forward& a, size_t* bytes) { return flash_kda_forward_workspace_size(&a, bytes); }
flash_kda_status inquire(const Decode& a, size_t* bytes) { return flash_kda_decode_workspace_size(&a, bytes); }
flash_kda_status describe(const Forward& a, char* text, size_t size) {
  return flash_kda_forward_describe(&a, text, size);
}
flash_kda_status describe(const Decode& a, char* text, size_t size) {
  return flash_kda_decode_describe(&a, text, size);
}

Case pick_case(FuzzedDataProvider& bytes, bool decode) {
  const auto dtype = [&] { return bytes.PickValueInArray({FLASH_KDA_F32, FLASH_KDA_BF16, FLASH_KDA_F16}); };
  const auto rows = [&] { return bytes.PickValueInArray({StateRows::kRows, StateRows::kPool, StateRows::kAbsent}); };
  Case c;
  c.B = bytes.ConsumeIntegralInRange(0, 3);
  c.T = bytes.ConsumeIntegralInRange(0, decode ? 8 : 70);
  c.H = bytes.ConsumeIntegralInRange(1, 3);
  c.HV = c.H * bytes.ConsumeIntegralInRange(1, 2);
  c.K = bytes.ConsumeIntegralInRange(1, 12);
  c.V = bytes.ConsumeIntegralInRange(1, 12);
  if (bytes.ConsumeBool()) {
    c.lengths.resize(bytes.ConsumeIntegralInRange<size_t>(1, 8));
    for (int64_t& length : c.lengths) length = bytes.ConsumeIntegralInRange(0, decode ? 8 : 66);
    c.rows_after = bytes.ConsumeIntegralInRange(0, 3);
    c.wide_cu_seqlens = bytes.ConsumeBool();
  }
  c.qkv = dtype();
  c.gate_dtype = dtype();
  c.beta_dtype = dtype();
  c.out = dtype();
  c.gate = bytes.PickValueInArray({FLASH_KDA_GATE_BOUNDED, FLASH_KDA_GATE_SOFTPLUS, FLASH_KDA_GATE_LOG});
  c.gate_parameters = bytes.ConsumeBool();
  c.flat_dt_bias = bytes.ConsumeBool();
  c.layout = bytes.PickValueInArray({Layout::kPacked, Layout::kFused, Layout::kPadded});
  c.initial = rows();
  c.initial_dtype = dtype();
  c.in_place = decode || bytes.ConsumeBool();
  if (c.in_place && c.initial == StateRows::kAbsent) c.initial = StateRows::kRows;
  c.final = c.in_place ? c.initial : rows();
  c.final_dtype = c.in_place ? c.initial_dtype : dtype();
  c.flags = c.initial != StateRows::kAbsent && bytes.ConsumeBool();
  if (!decode && c.sequences() > 0 && bytes.ConsumeBool()) {
    c.checkpoints.resize(bytes.ConsumeIntegralInRange<size_t>(1, 3));
    for (auto& [sequence, offset] : c.checkpoints) {
      sequence = bytes.ConsumeIntegralInRange<int32_t>(0, static_cast<int32_t>(c.sequences()) - 1);
      offset = 64 * bytes.ConsumeIntegralInRange(0, 2);
    }
    c.checkpoint_pool = bytes.ConsumeBool();
  }
  return c;
}

int64_t pick_number(FuzzedDataProvider& bytes) {
  switch (bytes.ConsumeIntegralInRange(0, 3)) {
    case 0:
      return bytes.ConsumeIntegralInRange(-2, 130);
    case 1:
      return int64_t{1} << bytes.ConsumeIntegralInRange(0, 62);
    case 2:
      return (int64_t{1} << bytes.ConsumeIntegralInRange(0, 62)) - 1;
    default:
      return bytes.ConsumeIntegral<int64_t>();
  }
}

/// Change one member of the struct, or one element of a control tensor.
template <typename Args>
void mutate(FuzzedDataProvider& bytes, Args& args) {
  const std::vector<flash_kda_tensor*> tensors = tensors_of(args);
  flash_kda_tensor& t = *tensors[bytes.ConsumeIntegralInRange<size_t>(0, tensors.size() - 1)];
  flash_kda_tensor& other = *tensors[bytes.ConsumeIntegralInRange<size_t>(0, tensors.size() - 1)];
  const auto dimension = bytes.ConsumeIntegralInRange(0, FLASH_KDA_MAX_RANK - 1);
  switch (bytes.ConsumeIntegralInRange(0, 13)) {
    case 0:
      t.data = nullptr;
      break;
    case 1:
      if (t.data != nullptr) t.data = static_cast<char*>(t.data) + bytes.ConsumeIntegralInRange(-16, 64);
      break;
    case 2:
      t.dtype = bytes.ConsumeIntegralInRange(-1, 9);
      break;
    case 3:
      t.rank = bytes.ConsumeIntegralInRange(-1, 6);
      break;
    case 4:
      t.shape[dimension] = pick_number(bytes);
      break;
    case 5:
      t.strides[dimension] = pick_number(bytes);
      break;
    case 6:
      std::swap(t, other);
      break;
    case 7:
      t.data = other.data;
      break;
    case 8:
      t = {};
      break;
    case 9: {
      for (int32_t* option :
           {&args.gate, &args.beta_form, &args.backend, &args.num_threads, &args.device, &args.l2norm})
        if (bytes.ConsumeBool()) *option = bytes.ConsumeIntegralInRange(-1, 4);
      break;
    }
    case 10:
      args.scale = bytes.ConsumeFloatingPoint<float>();
      break;
    case 11:
      args.lower_bound = bytes.ConsumeFloatingPointInRange<float>(-6, 1);
      break;
    case 12:
      args.struct_size = bytes.ConsumeIntegral<uint16_t>();
      break;
    default:
      for (flash_kda_tensor* control : {&args.cu_seqlens, &args.read_index, &args.write_index})
        if (control->rank == 1 && control->dtype == FLASH_KDA_I32 && control->data != nullptr &&
            control->shape[0] > 0 && control->shape[0] < 64)
          static_cast<int32_t*>(control->data)[bytes.ConsumeIntegralInRange<int64_t>(0, control->shape[0] - 1)] =
              static_cast<int32_t>(pick_number(bytes));
  }
}

/// The tensor lies in one of the problem's blocks. Only for tensors that validation accepted.
bool is_inside(const flash_kda_tensor& t, const Problem& problem) {
  int64_t last = 0;
  for (int d = 0; d < t.rank; ++d) {
    if (t.shape[d] == 0) return true;
    if (t.shape[d] > 1) last += (t.shape[d] - 1) * t.strides[d];
  }
  const int64_t size = (last + 1) * size_of(static_cast<flash_kda_dtype>(t.dtype));
  const auto* begin = static_cast<const unsigned char*>(t.data);
  return std::any_of(problem.blocks().begin(), problem.blocks().end(), [&](const Block& block) {
    return begin >= block.data() && begin <= block.data() + block.size && size <= block.data() + block.size - begin;
  });
}

/// The mutated struct may lie about memory; run only what a caller could mean.
template <typename Args>
bool is_runnable(Args& args, const Problem& problem, const Params& p) {
  if (p.N * p.HV > 1000 || p.B * p.T * p.HV > 10000) return false;
  for (const flash_kda_tensor* t : tensors_of(args))
    if (t->rank != 0 && !is_inside(*t, problem)) return false;
  return true;
}

template <typename Args>
void check(FuzzedDataProvider& bytes, Problem& problem, Args args) {
  std::vector<flash_kda_tensor> outputs;
  for (const flash_kda_tensor* t : outputs_of(args)) outputs.push_back(*t);
  for (int n = bytes.ConsumeIntegralInRange(0, 4); n > 0; --n) mutate(bytes, args);
  problem.take_snapshot();

  size_t workspace = 0;
  const flash_kda_status inquired = inquire(args, &workspace);
  char text[300];
  if (describe(args, text, sizeof text) != inquired) fault("the two inquiries differ");
  if (inquired != FLASH_KDA_OK && flash_kda_last_error()[0] == '\0') fault("a refusal without a message");
  Machine machine;
  machine.has_gpu = true;
  machine.compute_capability = 90;
  machine.multiprocessors = 132;
  bool accepted = false, runnable = false;
  try {
    const Params inquiry = validate(args, Purpose::kInquire);
    try {
      make_plan(inquiry, machine);
    } catch (const Error&) {
    }
    const Params params = validate(args, Purpose::kRun);
    accepted = true;
    runnable = is_runnable(args, problem, params);
  } catch (const Error& error) {
    if (error.what()[0] == '\0') fault("a refusal without a message");
  }
  if (accepted && !runnable) return;
  const flash_kda_status status = call(args);
  if (!accepted && status == FLASH_KDA_OK) fault("the call takes what validation refuses");
  if (accepted && status != FLASH_KDA_OK && args.backend != FLASH_KDA_BACKEND_CUDA)
    fault("the call refuses what validation takes");
  bool same_outputs = true;
  const std::vector<flash_kda_tensor*> now = outputs_of(args);
  for (size_t i = 0; i < outputs.size(); ++i)
    same_outputs = same_outputs && now[i]->data == outputs[i].data &&
                   std::equal(outputs[i].shape, outputs[i].shape + 4, now[i]->shape) &&
                   std::equal(outputs[i].strides, outputs[i].strides + 4, now[i]->strides) &&
                   now[i]->dtype == outputs[i].dtype;
  if (status != FLASH_KDA_OK || same_outputs) {
    const std::string stray = problem.stray_writes(status != FLASH_KDA_OK);
    if (!stray.empty()) fault(stray);
  }
}

}  // namespace
}  // namespace flash_kda::test

/// Calls are small: more threads would only wait for each other.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  omp_set_num_threads(1);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flash_kda::test;
  FuzzedDataProvider bytes(data, size);
  const bool decode = bytes.ConsumeBool();
  const flash_kda_backend backend =
      bytes.PickValueInArray({FLASH_KDA_BACKEND_CPU, FLASH_KDA_BACKEND_REFERENCE, FLASH_KDA_BACKEND_CUDA});
  Problem problem(pick_case(bytes, decode), 1, backend);
  if (decode)
    check(bytes, problem, problem.decode_args());
  else
    check(bytes, problem, problem.forward_args());
  return 0;
}

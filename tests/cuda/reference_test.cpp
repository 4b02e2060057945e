// The GPU recurrence against the CPU's, and the kernels against it where shapes are too long for the CPU.
#include "cuda/reference.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "api/params.h"
#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "cuda/device_tensors.h"
#include "cuda/solve.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

constexpr auto BF16 = FLASH_KDA_BF16;
constexpr auto F32 = FLASH_KDA_F32;
constexpr auto kPool = StateRows::kPool;

// ---- The reference itself ----

const std::vector<Case> kReferenceCases{
    {.B = 2, .T = 37, .qkv = BF16, .gate_dtype = BF16, .beta_dtype = BF16},
    {.T = 200, .H = 2, .HV = 6, .family = Family::kF6, .layout = Layout::kFused},
    {.T = 200, .family = Family::kF7},
    {.T = 100, .K = 64, .V = 32, .qkv = FLASH_KDA_F16, .family = Family::kF5, .flat_dt_bias = true, .lower_bound = -1},
    {.K = 60, .V = 100, .lengths = {1, 0, 16, 35}, .rows_after = 3, .wide_cu_seqlens = true},
    {.T = 100, .family = Family::kExtreme, .gate = FLASH_KDA_GATE_SOFTPLUS, .beta_form = FLASH_KDA_BETA_TWICE_SIGMOID},
    {.T = 100, .family = Family::kExtreme, .gate = FLASH_KDA_GATE_LOG, .beta_form = FLASH_KDA_BETA_PROBABILITIES},
    {.T = 100, .gate_parameters = false, .l2norm = false, .scale = -0.25F, .layout = Layout::kPadded},
    {.lengths = {5, 9, 1, 30, 2, 3, 4, 7}, .initial = kPool, .final = kPool, .in_place = true, .flags = true},
    {.lengths = {5, 9, 1, 30, 2, 3, 4, 7}, .initial = kPool, .initial_dtype = BF16, .final = kPool, .flags = true},
};

class Reference : public testing::TestWithParam<Case> {};

TEST_P(Reference, AgreesWithTheRecurrenceOfTheCpu) {
  const Problem problem = problem_of(GetParam());
  const DeviceProblem device(problem);
  run_gpu_reference(device.args());
  device.download(problem);
  // Both compute in fp64; what differs is the rounding of the results to fp32, at most 2^-24 of each.
  EXPECT_EQ(faults(problem, solve_by_oracle(GetParam()), 0x1p-24), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, Reference, testing::ValuesIn(kReferenceCases),
                         [](const auto& row) { return name_of(row.param); });

// ---- Long and wide shapes ----

/// A call whose tensors were made on the GPU. Of a Case it takes the lengths, the heads, whether decay is slow (F3) or
/// not, and the path.
class DeviceCall {
 public:
  /// token_stride: of q, k, v, g, beta and out, in elements; 0: contiguous.
  DeviceCall(const Case& c, int64_t token_stride) {
    flash_kda_forward_args_init(&args);
    const int64_t B = c.batch(), T = c.tokens(), H = c.H, HV = c.value_heads(), D = c.K, N = c.sequences();
    const auto rows = [&](int64_t heads, flash_kda_dtype dtype) {
      const int64_t token = token_stride == 0 ? heads * D : token_stride;
      return add({B, T, heads, D}, {T * token, token, D, 1}, dtype);
    };
    const int64_t row = token_stride == 0 ? HV : token_stride;
    args.q = rows(H, BF16);
    args.k = rows(H, BF16);
    args.v = rows(HV, BF16);
    args.g = rows(HV, BF16);
    args.out = rows(HV, BF16);
    args.beta = add({B, T, HV}, {T * row, row, 1}, BF16);
    args.A_log = add({HV}, {1}, F32);
    args.dt_bias = add({HV, D}, {D, 1}, F32);
    args.initial_state = add({N, HV, D, D}, {HV * D * D, D * D, D, 1}, F32);
    args.final_state = add({N, HV, D, D}, {HV * D * D, D * D, D, 1}, F32);
    uint64_t seed = 1;
    for (const flash_kda_tensor* x : {&args.q, &args.k, &args.v, &args.beta, &args.initial_state})
      fill_normal(*x, seed++, 0, 1);
    const bool slow = c.family == Family::kF3;
    fill_normal(args.g, seed++, slow ? -8 : 0, slow ? 0.5F : 1);
    fill_normal(args.A_log, seed++, slow ? 0 : 0.5F, slow ? 0 : 0.3F);
    fill_normal(args.dt_bias, seed++, slow ? 0 : 0.5F, slow ? 0 : 0.3F);
    if (c.packed()) {
      std::vector<int64_t> ends{0};
      for (int64_t length : c.lengths) ends.push_back(ends.back() + length);
      args.cu_seqlens = add({N + 1}, {1}, FLASH_KDA_I64);
      cuda::check(cudaMemcpy(args.cu_seqlens.data, ends.data(), ends.size() * sizeof(int64_t), cudaMemcpyHostToDevice),
                  "cudaMemcpy");
    }
    args.backend = FLASH_KDA_BACKEND_CUDA;
    args.cuda_path = c.cuda_path;
  }

  void add_workspace() {
    ASSERT_EQ(flash_kda_forward_workspace_size(&args, &args.workspace_size), FLASH_KDA_OK) << flash_kda_last_error();
    memory_.emplace_back(args.workspace_size);
    args.workspace = memory_.back().get();
  }

  /// The same inputs with contiguous fp32 outputs of its own.
  flash_kda_forward_args reference() {
    flash_kda_forward_args result = args;
    const auto own = [&](const flash_kda_tensor& t) {
      std::vector<int64_t> shape(t.shape, t.shape + t.rank), strides(shape.size(), 1);
      for (size_t d = shape.size() - 1; d > 0; --d) strides[d - 1] = strides[d] * shape[d];
      return add(shape, strides, F32);
    };
    result.out = own(args.out);
    result.final_state = own(args.final_state);
    return result;
  }

  flash_kda_forward_args args;

 private:
  flash_kda_tensor add(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, flash_kda_dtype dtype) {
    flash_kda_tensor t = {};
    t.dtype = dtype;
    t.rank = static_cast<int32_t>(shape.size());
    int64_t last = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      t.shape[d] = shape[d];
      t.strides[d] = strides[d];
      last += (shape[d] - 1) * strides[d];
    }
    memory_.emplace_back(static_cast<size_t>((last + 1) * size_of(dtype)));
    t.data = memory_.back().get();
    return t;
  }

  std::vector<DeviceMemory> memory_;
};

struct LargeRow {
  const char* name;
  Case shape;
  int64_t token_stride = 0;
};

void PrintTo(const LargeRow& row, std::ostream* stream) { *stream << row.name << ' ' << row.shape; }

const std::vector<LargeRow> kLargeRows{
    {"Fixed8192", {.T = 8192, .H = 8}},
    {"Slow8192", {.T = 8192, .H = 8, .family = Family::kF3}},
    {"Ragged8192", {.H = 12, .lengths = {1300, 547, 2048, 963, 271, 3063}}},
    {"SlowRagged8192WithGroupedHeads",
     {.H = 4, .HV = 12, .lengths = {1300, 547, 2048, 963, 271, 3063}, .family = Family::kF3}},
    {"C48_Fixed65536", {.T = 65536, .H = 1}},
    {"C50_4096SequencesOf63", {.H = 12, .lengths = std::vector<int64_t>(4096, 63)}},
    // 600,000 tokens, with 10 heads instead of 32. Of every token tensor the offsets pass 2^31 elements and 2^32 bytes,
    // of the workspace 2^32 bytes.
    {"C25_600000Tokens", {.T = 600000, .H = 10}, 4096},
};

class Large : public testing::TestWithParam<LargeRow> {};

TEST_P(Large, AgreesWithTheRecurrenceOfTheGpu) {
  const Case c = bf16(GetParam().shape);
  DeviceCall call(c, GetParam().token_stride);
  call.add_workspace();
  ASSERT_EQ(flash_kda_forward(&call.args), FLASH_KDA_OK) << flash_kda_last_error();
  const flash_kda_forward_args reference = call.reference();
  run_gpu_reference(reference);
  const auto expect_close = [&](const char* name, const flash_kda_tensor& actual, const flash_kda_tensor& expected,
                                int head_dimension) {
    const DeviceDifference d = compare_on_device(actual, expected, head_dimension);
    EXPECT_EQ(d.not_finite, 0) << name;
    EXPECT_LE(d.relative, bf16_tolerance(c)) << name;
    EXPECT_LE(d.worst_head, bf16_tolerance(c)) << name;
  };
  expect_close("out", call.args.out, reference.out, 2);
  expect_close("final_state", call.args.final_state, reference.final_state, 1);
}

INSTANTIATE_TEST_SUITE_P(Rows, Large, testing::ValuesIn(kLargeRows), [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace flash_kda::test

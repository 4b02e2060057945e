// Which path a call takes and with which sizes, for machines that are only described.
#include "api/plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/validate.h"
#include "cpu/chunked/chunked.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

Machine laptop() {
  Machine machine;
  machine.cpu_threads = 8;
  machine.instruction_set = cpu::InstructionSet::kAvx2;
  machine.why_no_gpu = "there is none";
  return machine;
}

Machine hopper() {
  Machine machine = laptop();
  machine.has_gpu = true;
  machine.why_no_gpu.clear();
  machine.gpu_name = "NVIDIA H200";
  machine.compute_capability = 90;
  machine.multiprocessors = 132;
  return machine;
}

Plan plan_of(const Case& c, flash_kda_backend backend, const Machine& machine) {
  return make_plan(validate(Problem(c, 1, backend).forward_args(), Purpose::kInquire), machine);
}

TEST(CpuPlan, ForwardIsChunked) {
  const Plan plan = plan_of({.B = 3, .T = 100, .H = 4, .K = 64}, FLASH_KDA_BACKEND_CPU, laptop());
  EXPECT_EQ(plan.path, Path::kCpuChunked);
  EXPECT_EQ(plan.chunk, cpu::kChunk);
  EXPECT_EQ(plan.threads, 8);
  EXPECT_EQ(plan.tasks, 3 * 4 * plan.value_split);
  EXPECT_EQ(plan.instruction_set, cpu::InstructionSet::kAvx2);
  EXPECT_EQ(plan.workspace_bytes, 0);
}

TEST(CpuPlan, DecodeIsRecurrent) {
  const Problem problem({.B = 5, .T = 2, .in_place = true}, 1, FLASH_KDA_BACKEND_CPU);
  const Plan plan = make_plan(validate(problem.decode_args(), Purpose::kInquire), laptop());
  EXPECT_EQ(plan.path, Path::kCpuRecurrent);
  EXPECT_EQ(plan.chunk, 1);
  EXPECT_EQ(plan.tasks, 5 * 2 * plan.value_split);
}

TEST(CpuPlan, ThreadsAskedForWin) {
  const Problem problem({.B = 64, .T = 1}, 1, FLASH_KDA_BACKEND_CPU);
  flash_kda_forward_args args = problem.forward_args();
  args.num_threads = 3;
  EXPECT_EQ(make_plan(validate(args, Purpose::kInquire), laptop()).threads, 3);
}

TEST(CpuPlan, ThreadsHaveALimit) {
  for (flash_kda_backend backend : {FLASH_KDA_BACKEND_CPU, FLASH_KDA_BACKEND_REFERENCE}) {
    const Problem problem({.B = 64, .T = 1}, 1, backend);
    flash_kda_forward_args args = problem.forward_args();
    args.num_threads = 1 << 30;
    const Params params = validate(args, Purpose::kInquire);
    EXPECT_EQ(make_plan(params, laptop()).threads, cpu::kMostThreads);
    Machine forked = laptop();
    forked.most_cpu_threads = 1;
    EXPECT_EQ(make_plan(params, forked).threads, 1);
  }
}

TEST(CpuPlan, FewHeadsAreSplitOverThreadsAndManyAreNot) {
  EXPECT_GT(plan_of({.T = 1, .H = 1}, FLASH_KDA_BACKEND_CPU, laptop()).value_split, 1);
  EXPECT_EQ(plan_of({.T = 1, .H = 32}, FLASH_KDA_BACKEND_CPU, laptop()).value_split, 1);
  Machine single = laptop();
  single.cpu_threads = 1;
  EXPECT_EQ(plan_of({.T = 1, .H = 1}, FLASH_KDA_BACKEND_CPU, single).value_split, 1);
}

TEST(ReferencePlan, IsTheReference) {
  const Plan plan = plan_of({.B = 2, .T = 9, .H = 3}, FLASH_KDA_BACKEND_REFERENCE, laptop());
  EXPECT_EQ(plan.path, Path::kReference);
  EXPECT_EQ(plan.tasks, 6);
}

TEST(Plan, PrintsEveryMember) {
  const std::string text = to_string(plan_of({.B = 2, .T = 9, .H = 3, .K = 32}, FLASH_KDA_BACKEND_CPU, laptop()));
  EXPECT_EQ(text.rfind("path=cpu/chunked chunk=16 tasks=6 value_split=1 helpers=0 threads=8 chunk_bound=0 "
                       "workspace_bytes=0 instruction_set=avx2 reason=",
                       0),
            0U)
      << text;
}

// ---- CUDA ----

/// What the CUDA kernels take.
Case cuda_case() {
  return {.T = 100,
          .H = 12,
          .qkv = FLASH_KDA_BF16,
          .gate_dtype = FLASH_KDA_BF16,
          .beta_dtype = FLASH_KDA_BF16,
          .out = FLASH_KDA_BF16};
}
Case two_kernel_case() {
  Case c = cuda_case();
  c.cuda_path = FLASH_KDA_CUDA_PATH_TWO_KERNEL;
  return c;
}

TEST(CudaPlan, FusedOnHopper) {
  const Plan plan = plan_of(cuda_case(), FLASH_KDA_BACKEND_CUDA, hopper());
  EXPECT_EQ(plan.path, Path::kCudaFused);
  EXPECT_EQ(plan.chunk, 32);
  EXPECT_EQ(plan.value_split, 1);
  EXPECT_EQ(plan.tasks, 12);
  EXPECT_EQ(plan.helpers, 0);
  EXPECT_EQ(plan.threads, 640);
  EXPECT_EQ(plan.workspace_bytes, 0U);
}

TEST(CudaPlan, IdleMultiprocessorsHelpWithLongSequences) {
  Case c = cuda_case();
  Machine machine = hopper();
  machine.multiprocessors = 16;
  const auto expect_helpers = [&](int expected) {
    const Plan plan = plan_of(c, FLASH_KDA_BACKEND_CUDA, machine);
    EXPECT_EQ(plan.helpers, expected) << c;
    EXPECT_EQ(plan.workspace_bytes > 0, expected > 0) << c;
    EXPECT_FALSE(plan.needs_workspace) << c;
  };
  c.T = 4096;
  for (const auto& [H, expected] : {std::pair{1, 3}, {4, 12}, {5, 11}, {12, 4}, {16, 0}}) {
    c.H = H;
    expect_helpers(expected);
  }
  // The fewer helpers a task has, the longer sequences are to be: 12 + 10 * tasks / helpers chunks.
  for (const auto& [H, chunks, expected] : {std::tuple{1, 15, 3}, {5, 16, 11}, {8, 22, 8}, {12, 42, 4}, {15, 162, 1}}) {
    c.H = H;
    c.T = int64_t{chunks} * 32;
    expect_helpers(expected);
    c.T -= 1;
    expect_helpers(0);
  }
  c.H = 1;
  c.T = 1030;
  c.lengths = {1000, 0, 30};  // 343 on average
  expect_helpers(0);
}

TEST(CudaPlan, TwoKernelWhereStatesOnlyMove) {
  Case c = cuda_case();
  c.T = 0;
  EXPECT_EQ(plan_of(c, FLASH_KDA_BACKEND_CUDA, hopper()).path, Path::kCudaTwoKernel);
  c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
  EXPECT_EQ(plan_of(c, FLASH_KDA_BACKEND_CUDA, hopper()).path, Path::kCudaFused);
}

TEST(CudaPlan, TwoKernelWhereFusedCannot) {
  Case c = cuda_case();
  Machine blackwell = hopper();
  blackwell.compute_capability = 100;
  EXPECT_EQ(plan_of(c, FLASH_KDA_BACKEND_CUDA, blackwell).path, Path::kCudaTwoKernel);
  c.gate_dtype = FLASH_KDA_F32;
  EXPECT_EQ(plan_of(c, FLASH_KDA_BACKEND_CUDA, hopper()).path, Path::kCudaTwoKernel);
}

TEST(CudaPlan, TwoKernel) {
  const Plan plan = plan_of(two_kernel_case(), FLASH_KDA_BACKEND_CUDA, hopper());
  EXPECT_EQ(plan.path, Path::kCudaTwoKernel);
  EXPECT_EQ(plan.chunk, 16);
  EXPECT_EQ(plan.chunk_bound, 7);
  EXPECT_EQ(plan.tasks, 12 * plan.value_split);
  EXPECT_TRUE(plan.needs_workspace);
  // Six results a tile and head: 13,824 bytes (docs/operator.md).
  EXPECT_GE(plan.workspace_bytes, 7U * 12U * 13824U);
}

TEST(CudaPlan, FewSequencesAreSplitOverMultiprocessors) {
  Case c = two_kernel_case();
  c.T = 1;
  EXPECT_GT(plan_of(c, FLASH_KDA_BACKEND_CUDA, hopper()).value_split, 1);
  c.B = 32;
  EXPECT_EQ(plan_of(c, FLASH_KDA_BACKEND_CUDA, hopper()).value_split, 1);
}

/// The workspace of a packed batch holds the tiles of any lengths that end at T, and the query needs no data for that.
TEST(CudaPlan, PackedWorkspaceSufficesForAnyLengthsAndNeedsNoData) {
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{16, 0}, {8, 8}, {1, 15}, {1, 1, 14}, {16, 16, 16, 1}}) {
    Case c = two_kernel_case();
    c.lengths = lengths;
    const Problem problem(c, 1, FLASH_KDA_BACKEND_CUDA);
    flash_kda_forward_args args = problem.forward_args();
    const Plan plan = make_plan(validate(args, Purpose::kInquire), hopper());
    int64_t tiles = 0;
    for (int64_t length : lengths) tiles += (length + 15) / 16;
    EXPECT_GE(plan.chunk_bound, tiles);
    for (const Buffer& b : problem.buffers()) (args.*b.argument).data = nullptr;
    const Plan blind = make_plan(validate(args, Purpose::kInquire), hopper());
    EXPECT_EQ(blind.workspace_bytes, plan.workspace_bytes);
    EXPECT_EQ(blind.chunk_bound, plan.chunk_bound);
  }
}

struct CudaRefusal {
  const char* name;
  std::function<void(Case&, Machine&)> mutate;
  flash_kda_status status;
  std::vector<std::string> message;
};

class CudaPlanRefusal : public testing::TestWithParam<CudaRefusal> {};

TEST_P(CudaPlanRefusal, NamesWhatIsMissing) {
  Case c = cuda_case();
  Machine machine = hopper();
  GetParam().mutate(c, machine);
  try {
    plan_of(c, FLASH_KDA_BACKEND_CUDA, machine);
    FAIL() << "no refusal";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), GetParam().status);
    for (const std::string& part : GetParam().message)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << '"' << part << "\" is not in: " << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rows, CudaPlanRefusal,
    testing::Values(
        CudaRefusal{"NoGpu",
                    [](Case&, Machine& m) { m = laptop(); },
                    FLASH_KDA_ERROR_DEVICE,
                    {"device: got CUDA device 0", "there is none"}},
        CudaRefusal{"Ampere",
                    [](Case&, Machine& m) {
                      m.compute_capability = 80;
                      m.gpu_name = "NVIDIA A100";
                    },
                    FLASH_KDA_ERROR_DEVICE,
                    {"device: got NVIDIA A100", "8.0", "9.0 or later"}},
        CudaRefusal{
            "Float32", [](Case& c, Machine&) { c.qkv = FLASH_KDA_F32; }, FLASH_KDA_ERROR_TYPE, {"q:", "bfloat16"}},
        CudaRefusal{
            "OutFloat32", [](Case& c, Machine&) { c.out = FLASH_KDA_F32; }, FLASH_KDA_ERROR_TYPE, {"out:", "bfloat16"}},
        CudaRefusal{"FusedOnBlackwell",
                    [](Case& c, Machine& m) {
                      c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
                      m.compute_capability = 100;
                    },
                    FLASH_KDA_ERROR_VALUE,
                    {"cuda_path: got 2 (fused), accepted here is 0 or 1", "compute capability 9.0"}},
        CudaRefusal{"FusedWithFloat32Gate",
                    [](Case& c, Machine&) {
                      c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
                      c.gate_dtype = FLASH_KDA_F32;
                    },
                    FLASH_KDA_ERROR_VALUE,
                    {"cuda_path: got 2 (fused), accepted here is 0 or 1", "g in bfloat16"}},
        CudaRefusal{"UnalignedRows",
                    [](Case& c, Machine&) { c.layout = Layout::kPadded; },
                    FLASH_KDA_ERROR_VALUE,
                    {"q: got a stride of", "a multiple of 16 bytes"}}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace flash_kda::test

// What the CUDA path refuses: each message names the argument, what it got and what is accepted, and nothing changes.
// tests/validate_test.cpp has the refusals that every backend shares. A new rule is one row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "api/params.h"
#include "cuda/device_memory.h"
#include "cuda/solve.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

using Args = flash_kda_forward_args;
constexpr auto kType = FLASH_KDA_ERROR_TYPE;
constexpr auto kValue = FLASH_KDA_ERROR_VALUE;
constexpr auto kDevice = FLASH_KDA_ERROR_DEVICE;
constexpr auto F16 = FLASH_KDA_F16;
constexpr auto F32 = FLASH_KDA_F32;

struct Refusal {
  const char* name;
  Case shape;
  std::function<void(Args&)> mutate;
  flash_kda_status status;
  std::vector<std::string> message;  ///< parts: the argument, what it got, what is accepted
};

void PrintTo(const Refusal& row, std::ostream* stream) { *stream << row.name; }

/// B = 2, T = 20, H = 2, states in rows. The two kernels are what needs a workspace.
Case fixed() { return bf16({.B = 2, .T = 20, .cuda_path = FLASH_KDA_CUDA_PATH_TWO_KERNEL}); }
Case with(void (*change)(Case&)) {
  Case c = fixed();
  change(c);
  return c;
}

void shift(flash_kda_tensor& t, int64_t bytes) { t.data = static_cast<char*>(t.data) + bytes; }

const std::vector<Refusal> kRefusals{
    // Types
    {"C33_Float16",
     with([](Case& c) { c.qkv = F16; }),
     {},
     kType,
     {"q: got dtype float16", "accepted by the CUDA kernels is bfloat16"}},
    {"Float32",
     with([](Case& c) { c.qkv = F32; }),
     {},
     kType,
     {"q: got dtype float32", "accepted by the CUDA kernels is bfloat16"}},
    {"MixedTypes",
     fixed(),
     [](Args& a) { a.v.dtype = F16; },
     kType,
     {"v: got dtype float16", "accepted is the dtype of q, bfloat16"}},
    {"C33_OutFloat16",
     with([](Case& c) { c.out = F16; }),
     {},
     kType,
     {"out: got dtype float16", "accepted by the CUDA kernels is bfloat16"}},
    {"OutFloat32", with([](Case& c) { c.out = F32; }), {}, kType, {"out: got dtype float32", "is bfloat16"}},
    {"C33_GateFloat16",
     with([](Case& c) { c.gate_dtype = F16; }),
     {},
     kType,
     {"g: got dtype float16", "bfloat16 or float32"}},
    {"C33_BetaFloat16",
     with([](Case& c) { c.beta_dtype = F16; }),
     {},
     kType,
     {"beta: got dtype float16", "bfloat16 or float32"}},
    {"C33_InitialFloat16",
     with([](Case& c) { c.initial_dtype = F16; }),
     {},
     kType,
     {"initial_state: got dtype float16", "accepted is float32, bfloat16"}},
    {"C33_FinalFloat16",
     with([](Case& c) { c.final_dtype = F16; }),
     {},
     kType,
     {"final_state: got dtype float16", "accepted is float32, bfloat16"}},
    {"FinalFloat64",
     fixed(),
     [](Args& a) { a.final_state.dtype = FLASH_KDA_F64; },
     kType,
     {"final_state: got dtype float64", "accepted is float32, bfloat16"}},

    // Heads and gates
    {"C34_HeadDimension64", bf16({.T = 20, .H = 64, .K = 64}), {}, kValue, {"q: got K = 64", "K = 128"}},
    {"ValueDimension64", bf16({.T = 20, .K = 128, .V = 64}), {}, kValue, {"v: got V = 64", "V = 128"}},
    {"ValueDimension256", bf16({.T = 20, .K = 128, .V = 256}), {}, kValue, {"v: got V = 256", "V = 128"}},
    {"C35_WideValues",
     fixed(),
     [](Args& a) { a.v.shape[3] = a.out.shape[3] = 512; },
     kValue,
     {"v: got V = 512, accepted is 1 to 256"}},
    {"C35_GateWithoutChannels",
     fixed(),
     [](Args& a) { a.g.rank = 3; },
     kValue,
     {"g: got shape [2, 20, 2]", "[B, T, HV, K] = [2, 20, 2, 128]"}},
    {"C32_BiasOfHeads",
     fixed(),
     [](Args& a) {
       a.dt_bias.rank = 1;
       a.dt_bias.shape[0] = 2;
       a.dt_bias.strides[0] = 1;
     },
     kValue,
     {"dt_bias: got shape [2]", "[HV * K] = [256]"}},
    {"C03_StrongSoftplus",
     with([](Case& c) { c.gate = FLASH_KDA_GATE_SOFTPLUS; }),
     {},
     kValue,
     {"gate: got 2 (softplus)", "1 (bounded)"}},
    {"C04_OrdinarySoftplus",
     with([](Case& c) {
       c.gate = FLASH_KDA_GATE_SOFTPLUS;
       c.family = Family::kTrained;
     }),
     {},
     kValue,
     {"gate: got 2 (softplus)", "1 (bounded)"}},
    {"C05_ExtremeSoftplus",
     with([](Case& c) {
       c.gate = FLASH_KDA_GATE_SOFTPLUS;
       c.family = Family::kExtreme;
     }),
     {},
     kValue,
     {"gate: got 2 (softplus)", "1 (bounded)"}},
    {"C06_LogGateZero",
     with([](Case& c) {
       c.gate = FLASH_KDA_GATE_LOG;
       c.family = Family::kNoDecay;
     }),
     {},
     kValue,
     {"gate: got 3 (log)", "1 (bounded)"}},
    {"LowerBound",
     fixed(),
     [](Args& a) { a.lower_bound = -5.5F; },
     kValue,
     {"lower_bound: got -5.5", "-5 <= lower_bound < 0"}},
    {"Checkpoints",
     bf16({.T = 100, .checkpoints = {{0, 64}, {0, 0}}}),
     {},
     kValue,
     {"checkpoints: got 2 of them", "none"}},

    // Addresses and strides that the copy engine cannot take
    {"QMisaligned", fixed(), [](Args& a) { shift(a.q, 2); }, kValue, {"q: got address 0x", "a multiple of 16 bytes"}},
    {"KMisaligned", fixed(), [](Args& a) { shift(a.k, 8); }, kValue, {"k: got address 0x", "a multiple of 16 bytes"}},
    {"VMisaligned", fixed(), [](Args& a) { shift(a.v, 14); }, kValue, {"v: got address 0x", "a multiple of 16 bytes"}},
    {"GMisaligned", fixed(), [](Args& a) { shift(a.g, 4); }, kValue, {"g: got address 0x", "a multiple of 16 bytes"}},
    {"OutMisaligned",
     fixed(),
     [](Args& a) { shift(a.out, 8); },
     kValue,
     {"out: got address 0x", "a multiple of 16 bytes"}},
    {"BiasMisaligned",
     fixed(),
     [](Args& a) { shift(a.dt_bias, 4); },
     kValue,
     {"dt_bias: got address 0x", "a multiple of 16 bytes"}},
    {"InitialMisaligned",
     fixed(),
     [](Args& a) { shift(a.initial_state, 8); },
     kValue,
     {"initial_state: got address 0x", "a multiple of 16 bytes"}},
    {"FinalMisaligned",
     fixed(),
     [](Args& a) { shift(a.final_state, 4); },
     kValue,
     {"final_state: got address 0x", "a multiple of 16 bytes"}},
    {"PaddedRows",
     with([](Case& c) { c.layout = Layout::kPadded; }),
     {},
     kValue,
     {"q: got a stride of", "a multiple of 16 bytes"}},
    {"KTokenStride",
     fixed(),
     [](Args& a) { a.k.strides[1] = 260; },
     kValue,
     {"k: got a stride of 260 elements (520 bytes) in dimension T", "a multiple of 16 bytes"}},
    {"VHeadStride",
     fixed(),
     [](Args& a) { a.v.strides[2] = 129; },
     kValue,
     {"v: got a stride of 129 elements (258 bytes) in dimension H", "a multiple of 16 bytes"}},
    {"GBatchStride",
     fixed(),
     [](Args& a) { a.g.strides[0] = 5121; },
     kValue,
     {"g: got a stride of 5121 elements (10242 bytes) in dimension B", "a multiple of 16 bytes"}},
    {"OutTokenStride",
     fixed(),
     [](Args& a) {
       a.out.strides[0] = 5152;
       a.out.strides[1] = 257;
     },
     kValue,
     {"out: got a stride of 257 elements (514 bytes) in dimension T", "a multiple of 16 bytes"}},
    {"InitialHeadStride",
     fixed(),
     [](Args& a) { a.initial_state.strides[1] += 2; },
     kValue,
     {"initial_state: got a stride of 16386 elements (65544 bytes) in dimension HV", "a multiple of 16 bytes"}},
    {"FinalSlotStride",
     fixed(),
     [](Args& a) { a.final_state.strides[0] += 1; },
     kValue,
     {"final_state: got a stride of 32769 elements (131076 bytes) in dimension N", "a multiple of 16 bytes"}},

    // Workspace
    {"WorkspaceAbsent",
     fixed(),
     [](Args& a) { a.workspace = nullptr; },
     kValue,
     {"workspace: got", "at least", "bytes"}},
    {"WorkspaceEmpty",
     fixed(),
     [](Args& a) { a.workspace_size = 0; },
     kValue,
     {"workspace: got 0 bytes at 0x", "at least", "bytes"}},
    {"WorkspaceTooSmall",
     fixed(),
     [](Args& a) { --a.workspace_size; },
     kValue,
     {"workspace: got", "at least", "bytes"}},
    {"WorkspaceMisaligned",
     fixed(),
     [](Args& a) { a.workspace = static_cast<char*>(a.workspace) + 128; },
     kValue,
     {"workspace: got address 0x", "a multiple of 256"}},

    // Devices
    {"DeviceNegative", fixed(), [](Args& a) { a.device = -1; }, kValue, {"device: got -1", "0 or more"}},
    {"DevicePastTheLast",
     fixed(),
     [](Args& a) { cuda::check(cudaGetDeviceCount(&a.device), "cudaGetDeviceCount"); },
     kDevice,
     {"device: got CUDA device", "there are only"}},
    {"DevicePastTheTable",
     fixed(),
     [](Args& a) { a.device = 1000; },
     kDevice,
     {"device: got CUDA device 1000", "device ordinals end at 63"}},

    // Overlap
    {"OutIsV",
     fixed(),
     [](Args& a) { a.out = a.v; },
     kValue,
     {"out: its memory overlaps v", "accepted is memory of its own"}},
    {"FinalIsShiftedInitial",
     with([](Case& c) { c.in_place = true; }),
     [](Args& a) { shift(a.final_state, 128); },
     kValue,
     {"final_state: its memory overlaps initial_state", "exactly the same tensor"}},
};

class Refusals : public testing::TestWithParam<Refusal> {};

TEST_P(Refusals, NamesTheArgumentAndChangesNothing) {
  const Refusal& row = GetParam();
  const Problem problem = problem_of(row.shape);
  const DeviceProblem device(problem);
  Args args = device.args();
  if (row.mutate) row.mutate(args);
  EXPECT_EQ(flash_kda_forward(&args), row.status);
  const std::string message = flash_kda_last_error();
  for (const std::string& part : row.message)
    EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" is not in: " << message;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "the refusal left an error behind";
  device.download(problem);
  EXPECT_EQ(problem.stray_writes(true), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, Refusals, testing::ValuesIn(kRefusals), [](const auto& row) { return row.param.name; });

TEST(Refusals, DecodeHasNoKernel) {
  const Problem problem = problem_of(bf16({.B = 2, .T = 2, .in_place = true}));
  const flash_kda_decode_args args = problem.decode_args();
  EXPECT_EQ(flash_kda_decode(&args), kValue);
  EXPECT_STREQ(flash_kda_last_error(),
               "operator: got decode, accepted by the CUDA kernels is forward (the CPU backend takes everything)");
  EXPECT_EQ(problem.stray_writes(true), "");
}

/// What is not refused: beta may have any stride, an extent of 1 any stride at all.
TEST(Refusals, StridesThatNeverMoveAreFree) {
  const Problem expected = solve(bf16({.T = 20, .H = 1}));
  const Problem problem = problem_of(bf16({.T = 20, .H = 1}));
  const DeviceProblem device(problem);
  Args args = device.args();
  for (auto member : {&Args::q, &Args::k, &Args::v, &Args::g, &Args::out}) {
    (args.*member).strides[0] = 3;
    (args.*member).strides[2] = 5;
  }
  args.beta.strides[0] = args.beta.strides[2] = 7;
  args.initial_state.strides[0] = args.final_state.strides[1] = 1;
  ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  device.download(problem);
  EXPECT_EQ(bitwise_faults(problem, expected), "");
}

}  // namespace
}  // namespace flash_kda::test

// Refusals: each names the argument, what it got and what is accepted, and changes nothing. A new rule is one row.
#include "api/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/compare.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

using Forward = flash_kda_forward_args;
using Decode = flash_kda_decode_args;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHuge = int64_t{1} << 61;

/// Packed, with every optional argument: state pools, flags, checkpoints in a pool. N = 9, T = 83, H = 2, HV = 4, K =
/// 8, V = 4.
const Case kEverything{.H = 2,
                       .HV = 4,
                       .K = 8,
                       .V = 4,
                       .lengths = {70, 0, 3, 1, 2, 1, 1, 2, 1},
                       .rows_after = 2,
                       .initial = StateRows::kPool,
                       .final = StateRows::kPool,
                       .flags = true,
                       .checkpoints = {{0, 64}, {2, 0}},
                       .checkpoint_pool = true};
/// B = 2, T = 3, H = 1, K = V = 8, states in rows, no checkpoints.
const Case kFixed{.B = 2, .T = 3, .H = 1, .K = 8};
/// B = 3, T = 2 on a pool in place.
const Case kDecode{.B = 3,
                   .T = 2,
                   .H = 1,
                   .K = 8,
                   .initial = StateRows::kPool,
                   .final = StateRows::kPool,
                   .in_place = true,
                   .flags = true};
/// Packed, 8, 0 and 1 tokens.
const Case kPackedDecode{.H = 1, .K = 8, .lengths = {8, 0, 1}, .in_place = true};

template <typename T>
T* data(const flash_kda_tensor& t) {
  return static_cast<T*>(t.data);
}

void absent(flash_kda_tensor& t) { t = {}; }

/// A contiguous shape over the memory the tensor has.
void reshape(flash_kda_tensor& t, std::initializer_list<int64_t> shape) {
  t.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), t.shape);
  int64_t step = 1;
  for (int d = t.rank - 1; d >= 0; step *= t.shape[d--]) t.strides[d] = step;
}

void move_bytes(flash_kda_tensor& t, int64_t bytes) { t.data = static_cast<char*>(t.data) + bytes; }

template <typename Args>
struct Refusal {
  const char* name;
  const Case& base;
  std::function<void(Args&)> mutate;
  flash_kda_status status;
  std::vector<std::string> message;  ///< parts: the argument, what it got, what is accepted
};

flash_kda_status call(const Forward& args) { return flash_kda_forward(&args); }
flash_kda_status call(const Decode& args) { return flash_kda_decode(&args); }
flash_kda_status inquire(const Forward& args, size_t* bytes) { return flash_kda_forward_workspace_size(&args, bytes); }
flash_kda_status inquire(const Decode& args, size_t* bytes) { return flash_kda_decode_workspace_size(&args, bytes); }

template <typename Args>
Args args_of(const Problem& problem) {
  if constexpr (std::is_same_v<Args, Forward>)
    return problem.forward_args();
  else
    return problem.decode_args();
}

template <typename Args>
void expect_refused(const Refusal<Args>& row) {
  Problem problem(row.base, 3, FLASH_KDA_BACKEND_CPU);
  Args args = args_of<Args>(problem);
  row.mutate(args);
  problem.take_snapshot();
  EXPECT_EQ(call(args), row.status);
  const std::string message = flash_kda_last_error();
  for (const std::string& part : row.message)
    EXPECT_NE(message.find(part), std::string::npos) << '"' << part << "\" is not in: " << message;
  EXPECT_EQ(problem.stray_writes(true), "");
}

template <typename Args>
std::string name_of_row(const testing::TestParamInfo<Refusal<Args>>& info) {
  return info.param.name;
}

template <typename Args>
void PrintTo(const Refusal<Args>& row, std::ostream* stream) {
  *stream << row.name;
}

constexpr auto kType = FLASH_KDA_ERROR_TYPE;
constexpr auto kValue = FLASH_KDA_ERROR_VALUE;

const std::vector<Refusal<Forward>> kForwardRefusals{
    // The struct and the options
    {"StructSize",
     kFixed,
     [](Forward& a) { a.struct_size -= 8; },
     kValue,
     {"struct_size: got ", std::to_string(sizeof(Forward) - 8), "accepted is " + std::to_string(sizeof(Forward)),
      "flash_kda_forward_args_init"}},
    {"BackendZero",
     kFixed,
     [](Forward& a) { a.backend = 0; },
     kValue,
     {"backend: got 0", "1 (CPU), 2 (CUDA) or 3 (reference)"}},
    {"BackendFour", kFixed, [](Forward& a) { a.backend = 4; }, kValue, {"backend: got 4", "3 (reference)"}},
    {"CudaPathNegative",
     kFixed,
     [](Forward& a) { a.cuda_path = -1; },
     kValue,
     {"cuda_path: got -1", "0 (automatic), 1 (two kernels) or 2 (fused)"}},
    {"CudaPathThree", kFixed, [](Forward& a) { a.cuda_path = 3; }, kValue, {"cuda_path: got 3", "2 (fused)"}},
    {"GateZero",
     kFixed,
     [](Forward& a) { a.gate = 0; },
     kValue,
     {"gate: got 0", "1 (bounded), 2 (softplus) or 3 (log)"}},
    {"GateFour", kFixed, [](Forward& a) { a.gate = 4; }, kValue, {"gate: got 4", "3 (log)"}},
    {"BetaFormZero",
     kFixed,
     [](Forward& a) { a.beta_form = 0; },
     kValue,
     {"beta_form: got 0", "1 (logits), 2 (probabilities) or 3 (twice sigmoid)"}},
    {"BetaFormFour", kFixed, [](Forward& a) { a.beta_form = 4; }, kValue, {"beta_form: got 4"}},
    {"DeviceNegative", kFixed, [](Forward& a) { a.device = -1; }, kValue, {"device: got -1", "0 or more"}},
    {"ThreadsNegative",
     kFixed,
     [](Forward& a) { a.num_threads = -2; },
     kValue,
     {"num_threads: got -2", "0 (automatic) or more"}},
    {"LowerBoundZero",
     kFixed,
     [](Forward& a) { a.lower_bound = 0; },
     kValue,
     {"lower_bound: got 0", "-5 <= lower_bound < 0"}},
    {"LowerBoundTooLow",
     kFixed,
     [](Forward& a) { a.lower_bound = -5.5F; },
     kValue,
     {"lower_bound: got -5.5", "-5 <= lower_bound < 0"}},
    {"LowerBoundNaN", kFixed, [](Forward& a) { a.lower_bound = kNaN; }, kValue, {"lower_bound: got nan"}},
    {"ScaleInfinite",
     kFixed,
     [](Forward& a) { a.scale = std::numeric_limits<float>::infinity(); },
     kValue,
     {"scale: got inf", "finite"}},
    {"ScaleNaN", kFixed, [](Forward& a) { a.scale = kNaN; }, kValue, {"scale: got nan", "finite"}},

    // Presence
    {"QAbsent", kFixed, [](Forward& a) { absent(a.q); }, kType, {"q: required, but absent"}},
    {"KAbsent", kFixed, [](Forward& a) { absent(a.k); }, kType, {"k: required, but absent"}},
    {"VAbsent", kFixed, [](Forward& a) { absent(a.v); }, kType, {"v: required, but absent"}},
    {"GAbsent", kFixed, [](Forward& a) { absent(a.g); }, kType, {"g: required, but absent"}},
    {"BetaAbsent", kFixed, [](Forward& a) { absent(a.beta); }, kType, {"beta: required, but absent"}},
    {"OutAbsent", kFixed, [](Forward& a) { absent(a.out); }, kType, {"out: required, but absent"}},
    {"InitialRankForgotten",
     kFixed,
     [](Forward& a) { a.initial_state.rank = 0; },
     kValue,
     {"initial_state: got rank 0 with data", "absent"}},
    {"FinalRankForgotten",
     kFixed,
     [](Forward& a) { a.final_state.rank = 0; },
     kValue,
     {"final_state: got rank 0 with data", "absent"}},
    {"BiasRankForgotten",
     kFixed,
     [](Forward& a) { a.dt_bias.rank = 0; },
     kValue,
     {"dt_bias: got rank 0 with data", "absent"}},
    {"ReadIndexAlone",
     kEverything,
     [](Forward& a) { absent(a.initial_state); },
     kValue,
     {"read_index: given without initial_state", "both or neither"}},
    {"WriteIndexAlone",
     kEverything,
     [](Forward& a) { absent(a.final_state); },
     kValue,
     {"write_index: given without final_state", "both or neither"}},
    {"FlagsAlone",
     kEverything,
     [](Forward& a) {
       absent(a.initial_state);
       absent(a.read_index);
     },
     kValue,
     {"has_initial_state: given without initial_state", "both or neither"}},
    {"CheckpointsAlone",
     kEverything,
     [](Forward& a) { absent(a.checkpoint_state); },
     kValue,
     {"checkpoints: given without checkpoint_state", "both or neither"}},
    {"CheckpointStateAlone",
     kEverything,
     [](Forward& a) { absent(a.checkpoints); },
     kValue,
     {"checkpoint_state: given without checkpoints", "both or neither"}},
    {"CheckpointIndexAlone",
     kEverything,
     [](Forward& a) {
       absent(a.checkpoints);
       absent(a.checkpoint_state);
     },
     kValue,
     {"checkpoint_index: given without checkpoints", "both or neither"}},
    {"LogGateWithALog",
     kFixed,
     [](Forward& a) { a.gate = FLASH_KDA_GATE_LOG; },
     kValue,
     {"A_log: given with the log gate", "absent"}},
    {"LogGateWithBias",
     kFixed,
     [](Forward& a) {
       a.gate = FLASH_KDA_GATE_LOG;
       absent(a.A_log);
     },
     kValue,
     {"dt_bias: given with the log gate", "absent"}},

    // Rank and shape
    {"RankFive", kFixed, [](Forward& a) { a.q.rank = 5; }, kValue, {"q: got rank 5", "1 to 4"}},
    {"RankNegative", kFixed, [](Forward& a) { a.v.rank = -1; }, kValue, {"v: got rank -1", "1 to 4"}},
    {"BiasRankFive", kFixed, [](Forward& a) { a.dt_bias.rank = 5; }, kValue, {"dt_bias: got rank 5", "1 to 4"}},
    {"QRankThree",
     kFixed,
     [](Forward& a) {
       reshape(a.q, {2, 3, 8});
     },
     kValue,
     {"q: got shape [2, 3, 8]", "[B, T, H, K]"}},
    {"QNegativeExtent",
     kFixed,
     [](Forward& a) { a.q.shape[1] = -3; },
     kValue,
     {"q: got shape [2, -3, 1, 8]", "[B, T, H, K]"}},
    {"KOtherTokens",
     kFixed,
     [](Forward& a) { a.k.shape[1] = 2; },
     kValue,
     {"k: got shape [2, 2, 1, 8]", "[B, T, H, K] = [2, 3, 1, 8]"}},
    {"VOtherBatch",
     kFixed,
     [](Forward& a) { a.v.shape[0] = 1; },
     kValue,
     {"v: got shape [1, 3, 1, 8]", "[B, T, HV, V] = [2, 3, HV, V]"}},
    {"GWithoutChannels",
     kFixed,
     [](Forward& a) {
       reshape(a.g, {2, 3, 1});
     },
     kValue,
     {"g: got shape [2, 3, 1]", "[B, T, HV, K] = [2, 3, 1, 8]"}},
    {"BetaOtherHeads",
     kEverything,
     [](Forward& a) { a.beta.shape[2] = 2; },
     kValue,
     {"beta: got shape [1, 83, 2]", "[B, T, HV] = [1, 83, 4]"}},
    {"OutOtherDim",
     kFixed,
     [](Forward& a) { a.out.shape[3] = 7; },
     kValue,
     {"out: got shape [2, 3, 1, 7]", "[B, T, HV, V] = [2, 3, 1, 8]"}},
    {"NoHeads", kFixed, [](Forward& a) { a.q.shape[2] = a.k.shape[2] = 0; }, kValue, {"q: got H = 0", "1 to 1048576"}},
    {"TooManyHeads",
     kFixed,
     [](Forward& a) { a.q.shape[2] = a.k.shape[2] = (1 << 20) + 1; },
     kValue,
     {"q: got H = 1048577", "1 to 1048576"}},
    {"NoValueHeads", kFixed, [](Forward& a) { a.v.shape[2] = 0; }, kValue, {"v: got HV = 0", "a multiple of H = 1"}},
    {"ValueHeadsNoMultiple",
     kEverything,
     [](Forward& a) { a.v.shape[2] = 3; },
     kValue,
     {"v: got HV = 3", "a multiple of H = 2"}},
    {"KZero", kFixed, [](Forward& a) { a.q.shape[3] = a.k.shape[3] = 0; }, kValue, {"q: got K = 0", "1 to 256"}},
    {"KTooLarge",
     kFixed,
     [](Forward& a) { a.q.shape[3] = a.k.shape[3] = 257; },
     kValue,
     {"q: got K = 257", "1 to 256"}},
    {"VZero", kFixed, [](Forward& a) { a.v.shape[3] = 0; }, kValue, {"v: got V = 0", "1 to 256"}},
    {"VTooLarge", kFixed, [](Forward& a) { a.v.shape[3] = 512; }, kValue, {"v: got V = 512", "1 to 256"}},
    {"ALogOtherHeads",
     kEverything,
     [](Forward& a) { a.A_log.shape[0] = 2; },
     kValue,
     {"A_log: got shape [2]", "[HV] = [4]"}},
    {"BiasPerHead",
     kEverything,
     [](Forward& a) { reshape(a.dt_bias, {4}); },
     kValue,
     {"dt_bias: got shape [4]", "[HV * K] = [32]"}},
    {"BiasOtherChannels",
     kEverything,
     [](Forward& a) {
       reshape(a.dt_bias, {4, 4});
     },
     kValue,
     {"dt_bias: got shape [4, 4]", "[HV, K] = [4, 8]"}},
    {"PackedBatch",
     kFixed,
     [](Forward& a) { a.cu_seqlens = a.A_log; },
     kValue,
     {"q: got B = 2", "accepted with cu_seqlens is B = 1"}},
    {"CuSeqlensRankTwo",
     kEverything,
     [](Forward& a) {
       reshape(a.cu_seqlens, {1, 10});
     },
     kValue,
     {"cu_seqlens: got shape [1, 10]", "[N + 1]"}},
    {"CuSeqlensEmpty",
     kEverything,
     [](Forward& a) { reshape(a.cu_seqlens, {0}); },
     kValue,
     {"cu_seqlens: got shape [0]", "[N + 1] with N >= 0"}},
    {"InitialOtherRows",
     kFixed,
     [](Forward& a) { a.initial_state.shape[0] = 1; },
     kValue,
     {"initial_state: got shape [1, 1, 8, 8]", "[N, HV, V, K] = [2, 1, 8, 8]"}},
    {"FinalOtherHeads",
     kEverything,
     [](Forward& a) { a.final_state.shape[1] = 3; },
     kValue,
     {"final_state: got shape [21, 3, 4, 8]", "[slots, HV, V, K] = [slots, 4, 4, 8]"}},
    {"StateTransposed",
     kEverything,
     [](Forward& a) {
       reshape(a.initial_state, {21, 4, 8, 4});
     },
     kValue,
     {"initial_state: got shape [21, 4, 8, 4]", "[slots, HV, V, K] = [slots, 4, 4, 8]"}},
    {"ReadIndexShort",
     kEverything,
     [](Forward& a) { a.read_index.shape[0] = 8; },
     kValue,
     {"read_index: got shape [8]", "[N] = [9]"}},
    {"WriteIndexLong",
     kEverything,
     [](Forward& a) { a.write_index.shape[0] = 10; },
     kValue,
     {"write_index: got shape [10]", "[N] = [9]"}},
    {"FlagsShort",
     kEverything,
     [](Forward& a) { a.has_initial_state.shape[0] = 1; },
     kValue,
     {"has_initial_state: got shape [1]", "[N] = [9]"}},
    {"CheckpointsTriples",
     kEverything,
     [](Forward& a) {
       reshape(a.checkpoints, {1, 3});
     },
     kValue,
     {"checkpoints: got shape [1, 3]", "[M, 2]"}},
    {"CheckpointIndexShort",
     kEverything,
     [](Forward& a) { a.checkpoint_index.shape[0] = 1; },
     kValue,
     {"checkpoint_index: got shape [1]", "[M] = [2]"}},
    {"CheckpointStateRows",
     kEverything,
     [](Forward& a) { absent(a.checkpoint_index); },
     kValue,
     {"checkpoint_state: got shape [7, 4, 4, 8]", "[M, HV, V, K] = [2, 4, 4, 8]"}},

    // Types
    {"QInt32",
     kFixed,
     [](Forward& a) { a.q.dtype = FLASH_KDA_I32; },
     kType,
     {"q: got dtype int32 (5)", "float32, bfloat16, float16"}},
    {"QUnknownType",
     kFixed,
     [](Forward& a) { a.q.dtype = 99; },
     kType,
     {"q: got dtype unknown (99)", "float32, bfloat16, float16"}},
    {"QFloat64",
     kFixed,
     [](Forward& a) { a.q.dtype = FLASH_KDA_F64; },
     kType,
     {"q: got dtype float64", "float32, bfloat16, float16"}},
    {"KOtherType",
     kFixed,
     [](Forward& a) { a.k.dtype = FLASH_KDA_BF16; },
     kType,
     {"k: got dtype bfloat16", "the dtype of q, float32"}},
    {"VOtherType",
     kFixed,
     [](Forward& a) { a.v.dtype = FLASH_KDA_F16; },
     kType,
     {"v: got dtype float16", "the dtype of q, float32"}},
    {"GBool", kFixed, [](Forward& a) { a.g.dtype = FLASH_KDA_BOOL; }, kType, {"g: got dtype bool"}},
    {"BetaInt64", kFixed, [](Forward& a) { a.beta.dtype = FLASH_KDA_I64; }, kType, {"beta: got dtype int64"}},
    {"OutFloat64",
     kFixed,
     [](Forward& a) { a.out.dtype = FLASH_KDA_F64; },
     kType,
     {"out: got dtype float64", "float32, bfloat16, float16"}},
    {"OutInt32OnReference",
     kFixed,
     [](Forward& a) {
       a.backend = FLASH_KDA_BACKEND_REFERENCE;
       a.out.dtype = FLASH_KDA_I32;
     },
     kType,
     {"out: got dtype int32", "float64"}},
    {"StateFloat64",
     kFixed,
     [](Forward& a) { a.final_state.dtype = FLASH_KDA_F64; },
     kType,
     {"final_state: got dtype float64", "float32, bfloat16, float16"}},
    {"StateBoolOnReference",
     kFixed,
     [](Forward& a) {
       a.backend = FLASH_KDA_BACKEND_REFERENCE;
       a.initial_state.dtype = FLASH_KDA_BOOL;
     },
     kType,
     {"initial_state: got dtype bool", "float64"}},
    {"StateFloat16OnCuda",
     kFixed,
     [](Forward& a) {
       a.backend = FLASH_KDA_BACKEND_CUDA;
       a.initial_state.dtype = FLASH_KDA_F16;
     },
     kType,
     {"initial_state: got dtype float16", "float32, bfloat16"}},
    {"ALogBfloat16",
     kFixed,
     [](Forward& a) { a.A_log.dtype = FLASH_KDA_BF16; },
     kType,
     {"A_log: got dtype bfloat16", "float32"}},
    {"BiasFloat16",
     kFixed,
     [](Forward& a) { a.dt_bias.dtype = FLASH_KDA_F16; },
     kType,
     {"dt_bias: got dtype float16", "float32"}},
    {"CuSeqlensFloat",
     kEverything,
     [](Forward& a) { a.cu_seqlens.dtype = FLASH_KDA_F32; },
     kType,
     {"cu_seqlens: got dtype float32", "int32, int64"}},
    {"IndexInt64",
     kEverything,
     [](Forward& a) { a.read_index.dtype = FLASH_KDA_I64; },
     kType,
     {"read_index: got dtype int64", "int32"}},
    {"FlagsInt32",
     kEverything,
     [](Forward& a) { a.has_initial_state.dtype = FLASH_KDA_I32; },
     kType,
     {"has_initial_state: got dtype int32", "bool"}},
    {"CheckpointsInt64",
     kEverything,
     [](Forward& a) { a.checkpoints.dtype = FLASH_KDA_I64; },
     kType,
     {"checkpoints: got dtype int64", "int32"}},

    // Strides
    {"StrideNegative",
     kFixed,
     [](Forward& a) { a.q.strides[1] = -8; },
     kValue,
     {"q: got stride -8 in dimension 1", "0 or more"}},
    {"LastDimensionStrided",
     kFixed,
     [](Forward& a) { a.g.strides[3] = 2; },
     kValue,
     {"g: got stride 2 in dimension 3", "accepted is 1 (the last dimension must be contiguous)"}},
    {"ALogStrided",
     kEverything,
     [](Forward& a) { a.A_log.strides[0] = 2; },
     kValue,
     {"A_log: got stride 2 in dimension 0", "accepted is 1"}},
    {"BiasRowsStrided",
     kEverything,
     [](Forward& a) { a.dt_bias.strides[0] = 9; },
     kValue,
     {"dt_bias: got stride 9 in dimension 0", "accepted is 8", "last dimensions"}},
    {"CheckpointsStrided",
     kEverything,
     [](Forward& a) { a.checkpoints.strides[0] = 3; },
     kValue,
     {"checkpoints: got stride 3 in dimension 0", "accepted is 2"}},
    {"StateRowStrided",
     kFixed,
     [](Forward& a) { a.initial_state.strides[3] = 0; },
     kValue,
     {"initial_state: got stride 0 in dimension 3", "accepted is 1"}},
    {"SpanTooLarge",
     kFixed,
     [](Forward& a) { a.q.strides[1] = kHuge; },
     kValue,
     {"q: got shape [2, 3, 1, 8] with strides [24, 2305843009213693952, 8, 1]", "less than 2^62 bytes"}},
    {"StrideMinimum",
     kFixed,
     [](Forward& a) { a.v.strides[0] = std::numeric_limits<int64_t>::min(); },
     kValue,
     {"v: got shape", "less than 2^62 bytes"}},
    {"TooManyElements",
     kFixed,
     [](Forward& a) {
       for (flash_kda_tensor* t : {&a.q, &a.k, &a.v, &a.g, &a.beta, &a.out})
         t->shape[0] = t->shape[1] = int64_t{1} << 40;
     },
     kValue,
     {"q: got shape [1099511627776, 1099511627776, 1, 8]", "less than 2^62 bytes"}},
    {"OutRepeatsTokens",
     kFixed,
     [](Forward& a) { a.out.strides[1] = 0; },
     kValue,
     {"out: got strides [24, 0, 8, 1] for shape [2, 3, 1, 8]", "strides that step over all that smaller ones reach"}},
    {"OutRowsOverlap",
     kFixed,
     [](Forward& a) { a.out.strides[1] = 7; },
     kValue,
     {"out: got strides [24, 7, 8, 1]", "strides that step over all that smaller ones reach"}},
    {"FinalSlotsOverlap",
     kFixed,
     [](Forward& a) { a.final_state.strides[0] = 63; },
     kValue,
     {"final_state: got strides [63, 64, 8, 1]", "strides that step over all that smaller ones reach"}},

    // Addresses
    {"QNull", kFixed, [](Forward& a) { a.q.data = nullptr; }, kValue, {"q: data is null", "a pointer to 48 elements"}},
    {"OutNull",
     kFixed,
     [](Forward& a) { a.out.data = nullptr; },
     kValue,
     {"out: data is null", "a pointer to 48 elements"}},
    {"ALogNull",
     kFixed,
     [](Forward& a) { a.A_log.data = nullptr; },
     kValue,
     {"A_log: data is null", "a pointer to 1 elements"}},
    {"BiasNull", kFixed, [](Forward& a) { a.dt_bias.data = nullptr; }, kValue, {"dt_bias: data is null"}},
    {"CuSeqlensNull",
     kEverything,
     [](Forward& a) { a.cu_seqlens.data = nullptr; },
     kValue,
     {"cu_seqlens: data is null", "a pointer to 10 elements"}},
    {"InitialNull",
     kFixed,
     [](Forward& a) { a.initial_state.data = nullptr; },
     kValue,
     {"initial_state: data is null"}},
    {"CheckpointsNull",
     kEverything,
     [](Forward& a) { a.checkpoints.data = nullptr; },
     kValue,
     {"checkpoints: data is null", "a pointer to 4 elements"}},
    {"QMisaligned",
     kFixed,
     [](Forward& a) { move_bytes(a.q, 2); },
     kValue,
     {"q: got address 0x", "a multiple of the element size 4"}},
    {"CuSeqlensMisaligned",
     kEverything,
     [](Forward& a) { move_bytes(a.cu_seqlens, 1); },
     kValue,
     {"cu_seqlens: got address 0x", "a multiple of the element size 4"}},

    // Contents of cu_seqlens and checkpoints
    {"CuSeqlensStart",
     kEverything,
     [](Forward& a) { data<int32_t>(a.cu_seqlens)[0] = 1; },
     kValue,
     {"cu_seqlens[0]: got 1", "accepted is 0"}},
    {"CuSeqlensNegative",
     kEverything,
     [](Forward& a) { data<int32_t>(a.cu_seqlens)[1] = -1; },
     kValue,
     {"cu_seqlens[1]: got -1 after 0", "never decreases"}},
    {"CuSeqlensDecreases",
     kEverything,
     [](Forward& a) { data<int32_t>(a.cu_seqlens)[3] = 69; },
     kValue,
     {"cu_seqlens[3]: got 69 after 70", "never decreases"}},
    {"CuSeqlensPastTheEnd",
     kEverything,
     [](Forward& a) { data<int32_t>(a.cu_seqlens)[9] = 84; },
     kValue,
     {"cu_seqlens[9]: got 84", "at most T = 83"}},
    {"CuSeqlensWide",
     kEverything,
     [](Forward& a) {
       static const int64_t cu[]{0, int64_t{1} << 32};
       for (flash_kda_tensor* t :
            {&a.initial_state, &a.final_state, &a.read_index, &a.write_index, &a.has_initial_state})
         absent(*t);
       a.cu_seqlens.data = const_cast<int64_t*>(cu);
       a.cu_seqlens.dtype = FLASH_KDA_I64;
       reshape(a.cu_seqlens, {2});
     },
     kValue,
     {"cu_seqlens[1]: got 4294967296", "at most T = 83"}},
    {"CheckpointSequenceNegative",
     kEverything,
     [](Forward& a) { data<int32_t>(a.checkpoints)[0] = -1; },
     kValue,
     {"checkpoints[0]: got sequence -1", "0 to N - 1 = 8"}},
    {"CheckpointSequenceTooLarge",
     kEverything,
     [](Forward& a) { data<int32_t>(a.checkpoints)[2] = 9; },
     kValue,
     {"checkpoints[1]: got sequence 9", "0 to N - 1 = 8"}},
    {"CheckpointOffsetNegative",
     kEverything,
     [](Forward& a) { data<int32_t>(a.checkpoints)[1] = -64; },
     kValue,
     {"checkpoints[0]: got offset -64", "accepted is 0 or a positive multiple of 64"}},
    {"CheckpointOffsetOdd",
     kEverything,
     [](Forward& a) { data<int32_t>(a.checkpoints)[3] = 32; },
     kValue,
     {"checkpoints[1]: got offset 32", "accepted is 0 or a positive multiple of 64"}},

    // Overlap
    {"OutOverQ", kFixed, [](Forward& a) { a.out = a.q; }, kValue, {"out: its memory overlaps q", "memory of its own"}},
    {"OutOverBeta", kFixed, [](Forward& a) { a.beta.data = a.out.data; }, kValue, {"out: its memory overlaps beta"}},
    {"OutOverVShifted",
     kFixed,
     [](Forward& a) {
       a.v.data = a.out.data;
       move_bytes(a.v, int64_t{47} * 4);
     },
     kValue,
     {"out: its memory overlaps v"}},
    {"OutOverALog", kFixed, [](Forward& a) { a.A_log.data = a.out.data; }, kValue, {"out: its memory overlaps A_log"}},
    {"OutOverIndex",
     kEverything,
     [](Forward& a) { a.write_index.data = a.out.data; },
     kValue,
     {"out: its memory overlaps write_index"}},
    {"OutInGapOfWiderSlice",
     kFixed,  // out's rows of 8 begin in the gap of k's rows of 12, and run into the next
     [](Forward& a) {
       for (flash_kda_tensor* t : {&a.k, &a.out}) {
         t->strides[0] = 36;
         t->strides[1] = 12;
       }
       a.k.data = a.out.data;
       move_bytes(a.k, int64_t{8} * 4);
       move_bytes(a.out, 4);
     },
     kValue,
     {"out: its memory overlaps k"}},
    {"FinalOverOut",
     kFixed,
     [](Forward& a) { a.final_state.data = a.out.data; },
     kValue,
     {"final_state: its memory overlaps out"}},
    {"FinalOverInitialShifted",
     kFixed,
     [](Forward& a) {
       a.initial_state.data = a.final_state.data;
       move_bytes(a.initial_state, 32);
     },
     kValue,
     {"final_state: its memory overlaps initial_state", "or exactly the same tensor"}},
    {"FinalOverInitialOtherType",
     kFixed,
     [](Forward& a) {
       a.initial_state.data = a.final_state.data;
       a.initial_state.dtype = FLASH_KDA_BF16;
     },
     kValue,
     {"final_state: its memory overlaps initial_state", "or exactly the same tensor"}},
    {"FinalOverInitialOtherStrides",
     kFixed,
     [](Forward& a) {
       a.initial_state.data = a.final_state.data;
       a.initial_state.strides[0] = a.initial_state.strides[2];  // inside final_state: it must meet nothing else
     },
     kValue,
     {"final_state: its memory overlaps initial_state"}},
    {"CheckpointsOverFinal",
     kEverything,
     [](Forward& a) { a.checkpoint_state.data = a.final_state.data; },
     kValue,
     {"checkpoint_state: its memory overlaps final_state"}},
    {"CheckpointsOverInitial",
     kEverything,
     [](Forward& a) { a.checkpoint_state.data = a.initial_state.data; },
     kValue,
     {"checkpoint_state: its memory overlaps initial_state"}},
};

const std::vector<Refusal<Decode>> kDecodeRefusals{
    {"StructSize",
     kDecode,
     [](Decode& a) { a.struct_size = 0; },
     kValue,
     {"struct_size: got 0", "flash_kda_decode_args_init"}},
    {"StateAbsent", kDecode, [](Decode& a) { absent(a.state); }, kType, {"state: required, but absent"}},
    {"ReadRankForgotten",
     kDecode,
     [](Decode& a) { a.read_index.rank = 0; },
     kValue,
     {"read_index: got rank 0 with data"}},
    {"StateOtherRows",
     kDecode,
     [](Decode& a) {
       absent(a.read_index);
       absent(a.write_index);
     },
     kValue,
     {"state: got shape [9, 1, 8, 8]", "[N, HV, V, K] = [3, 1, 8, 8]"}},
    {"WriteIndexAlone",
     kDecode,
     [](Decode& a) { absent(a.read_index); },
     kValue,
     {"write_index: given without read_index", "both, or read_index alone"}},
    {"WriteIndexShort",
     kDecode,
     [](Decode& a) { a.write_index.shape[0] = 1; },
     kValue,
     {"write_index: got shape [1]", "[N] = [3]"}},
    {"NineTokens",
     kDecode,
     [](Decode& a) {
       reshape(a.q, {1, 9, 1, 4});
       reshape(a.k, {1, 9, 1, 4});
       reshape(a.v, {1, 9, 1, 4});
       reshape(a.g, {1, 9, 1, 4});
       reshape(a.beta, {1, 9, 1});
       reshape(a.out, {1, 9, 1, 4});
       absent(a.dt_bias);
     },
     kValue,
     {"q: got T = 9", "accepted by decode is at most 8"}},
    {"NinePackedTokens",
     kPackedDecode,
     [](Decode& a) { data<int32_t>(a.cu_seqlens)[1] = data<int32_t>(a.cu_seqlens)[2] = 9; },
     kValue,
     {"cu_seqlens[1]: got a sequence of 9 tokens", "at most 8"}},
    {"OutOverState", kDecode, [](Decode& a) { a.out.data = a.state.data; }, kValue, {"state: its memory overlaps out"}},
    {"StateOverQ", kDecode, [](Decode& a) { a.q.data = a.state.data; }, kValue, {"state: its memory overlaps q"}},
    {"StateRepeatsSlots",
     kDecode,
     [](Decode& a) { a.state.strides[0] = 0; },
     kValue,
     {"state: got strides [0, 64, 8, 1]", "strides that step over all that smaller ones reach"}},
};

class ForwardRefusal : public testing::TestWithParam<Refusal<Forward>> {};
TEST_P(ForwardRefusal, NamesTheArgumentAndChangesNothing) { expect_refused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Rows, ForwardRefusal, testing::ValuesIn(kForwardRefusals), name_of_row<Forward>);

class DecodeRefusal : public testing::TestWithParam<Refusal<Decode>> {};
TEST_P(DecodeRefusal, NamesTheArgumentAndChangesNothing) { expect_refused(GetParam()); }
INSTANTIATE_TEST_SUITE_P(Rows, DecodeRefusal, testing::ValuesIn(kDecodeRefusals), name_of_row<Decode>);

// ---- What is not refused ----

/// The bases of the tables above: a row that is refused is refused for its mutation.
TEST(Accepted, BasesOfTheRefusals) {
  for (const Case& base : {kEverything, kFixed}) {
    const Problem problem(base, 3, FLASH_KDA_BACKEND_CPU);
    EXPECT_EQ(call(problem.forward_args()), FLASH_KDA_OK) << flash_kda_last_error();
    EXPECT_EQ(problem.stray_writes(), "");
  }
  for (const Case& base : {kDecode, kPackedDecode}) {
    const Problem problem(base, 3, FLASH_KDA_BACKEND_CPU);
    EXPECT_EQ(call(problem.decode_args()), FLASH_KDA_OK) << flash_kda_last_error();
    EXPECT_EQ(problem.stray_writes(), "");
  }
}

/// A whole call, out included, on slices of one [B, T, 4 K] buffer: no two overlap although their address ranges do.
TEST(Accepted, InterleavedSlicesOfOneBuffer) {
  const Problem separate(kFixed, 3, FLASH_KDA_BACKEND_CPU), fused(kFixed, 3, FLASH_KDA_BACKEND_CPU);
  ASSERT_EQ(call(separate.forward_args()), FLASH_KDA_OK) << flash_kda_last_error();
  std::vector<float> buffer(static_cast<size_t>(2 * 3 * 4 * 8));
  Forward args = fused.forward_args();
  int64_t first = 0;
  for (flash_kda_tensor* t : {&args.q, &args.out, &args.k, &args.v}) {
    flash_kda_tensor slice = *t;
    slice.data = buffer.data() + first;
    slice.strides[0] = int64_t{3} * 32;
    slice.strides[1] = 32;
    if (t != &args.out) for_each_element(slice, [&](const int64_t* at, int64_t) { set(slice, at, get(*t, at)); });
    *t = slice;
    first += 8;
  }
  ASSERT_EQ(call(args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_difference(args.out, separate.tensor("out")), "");
}

/// out and q anywhere in one buffer: refused exactly where they share an element.
TEST(Overlap, IsExact) {
  const Problem problem(kFixed, 3, FLASH_KDA_BACKEND_CPU);
  std::vector<float> buffer(4096);
  std::mt19937 random(5);
  const auto draw = [&](int64_t count) { return static_cast<int64_t>(random() % static_cast<uint32_t>(count)); };
  const auto elements_of = [&](const flash_kda_tensor& t) {
    std::set<const void*> elements;
    for_each_element(t, [&](const int64_t* at, int64_t) {
      int64_t offset = 0;
      for (int d = 0; d < t.rank; ++d) offset += at[d] * t.strides[d];
      elements.insert(static_cast<const float*>(t.data) + offset);
    });
    return elements;
  };
  int shared = 0, interleaved = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    Forward args = problem.forward_args();
    for (flash_kda_tensor* t : {&args.out, &args.q}) {
      t->data = buffer.data() + draw(300);
      // Strides of views of one [2, 6, 2, 16] buffer; those of q every fourth time any at all.
      const bool nested = t == &args.out || trial % 4 != 0;
      t->strides[0] = nested ? 192 : draw(200);
      t->strides[1] = nested ? 32 : draw(60);
    }
    const auto out = elements_of(args.out), q = elements_of(args.q);
    const bool overlap = std::any_of(q.begin(), q.end(), [&](const void* x) { return out.contains(x); });
    ASSERT_EQ(call(args), overlap ? FLASH_KDA_ERROR_VALUE : FLASH_KDA_OK) << "trial " << trial;
    const bool ranges_overlap = *out.begin() <= *q.rbegin() && *q.begin() <= *out.rbegin();
    shared += overlap ? 1 : 0;
    interleaved += ranges_overlap && !overlap ? 1 : 0;
  }
  EXPECT_GT(shared, 300);
  EXPECT_GT(interleaved, 300);
}

TEST(Accepted, ExpandedInputs) {
  Case c = kFixed;
  c.H = 3;
  const Problem expanded(c, 3, FLASH_KDA_BACKEND_CPU), copied(c, 3, FLASH_KDA_BACKEND_CPU);
  Forward args = expanded.forward_args();
  args.q.strides[2] = 0;     // one head for all
  args.g.strides[1] = 0;     // one gate for all tokens
  args.beta.strides[2] = 0;  // one beta for all heads
  args.v.strides[0] = 0;     // one batch row for all
  const Forward copies = copied.forward_args();
  for (auto member : {&Forward::q, &Forward::g, &Forward::beta, &Forward::v})
    for_each_element(copies.*member,
                     [&](const int64_t* at, int64_t) { set(copies.*member, at, get(args.*member, at)); });
  ASSERT_EQ(call(args), FLASH_KDA_OK) << flash_kda_last_error();
  ASSERT_EQ(call(copies), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_faults(expanded, copied), "");
}

TEST(Accepted, FinalIsInitial) {
  Case in_place = kFixed;
  in_place.in_place = true;
  const Problem a(kFixed, 3, FLASH_KDA_BACKEND_CPU), b(in_place, 3, FLASH_KDA_BACKEND_CPU);
  ASSERT_EQ(call(a.forward_args()), FLASH_KDA_OK) << flash_kda_last_error();
  Forward args = b.forward_args();
  args.initial_state.strides[1] = 5;  // of one head: never used, and no reason to call the two different
  ASSERT_EQ(call(args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_difference(b.tensor("final_state"), a.tensor("final_state")), "");
}

TEST(Accepted, AnyStrideOfAnExtentOfOne) {
  Case c = kFixed;
  c.B = c.T = 1;
  const Problem plain(c, 3, FLASH_KDA_BACKEND_CPU), wild(c, 3, FLASH_KDA_BACKEND_CPU);
  ASSERT_EQ(call(plain.forward_args()), FLASH_KDA_OK) << flash_kda_last_error();
  Forward args = wild.forward_args();
  int64_t stride = std::numeric_limits<int64_t>::max();
  for (auto member : {&Forward::q, &Forward::k, &Forward::v, &Forward::g, &Forward::beta, &Forward::out,
                      &Forward::initial_state, &Forward::final_state})
    for (int d = 0; d < 2; ++d) (args.*member).strides[d] = stride = -stride;
  ASSERT_EQ(call(args), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bitwise_faults(wild, plain), "");
}

TEST(Accepted, NothingToPointAt) {
  Case c = kFixed;
  c.T = 0;
  c.initial = c.final = StateRows::kAbsent;
  const Problem problem(c, 3, FLASH_KDA_BACKEND_CPU);
  Forward args = problem.forward_args();
  for (auto member : {&Forward::q, &Forward::k, &Forward::v, &Forward::g, &Forward::beta, &Forward::out})
    (args.*member).data = nullptr;
  EXPECT_EQ(call(args), FLASH_KDA_OK) << flash_kda_last_error();
}

TEST(Accepted, Float64OnTheReference) {
  const Problem problem(oracle_case(kEverything), 3, FLASH_KDA_BACKEND_REFERENCE);
  EXPECT_EQ(call(problem.forward_args()), FLASH_KDA_OK) << flash_kda_last_error();
}

/// Shapes, types and options decide: neither data nor contents of control tensors are looked at.
TEST(Accepted, InquiriesWithoutData) {
  const Problem problem(kEverything, 3, FLASH_KDA_BACKEND_CPU);
  Forward args = problem.forward_args();
  data<int32_t>(args.cu_seqlens)[0] = 1;
  EXPECT_NO_THROW(validate(args, Purpose::kInquire));
  for (const Buffer& b : problem.buffers()) (args.*b.argument).data = nullptr;
  const Params p = validate(args, Purpose::kInquire);
  EXPECT_TRUE(p.packed);
  EXPECT_EQ(p.N, 9);
  EXPECT_EQ(p.M, 2);
  size_t bytes = 1;
  EXPECT_EQ(inquire(args, &bytes), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bytes, 0);

  const Problem decode_problem(kPackedDecode, 3, FLASH_KDA_BACKEND_CPU);
  Decode decode = decode_problem.decode_args();
  decode.q.data = decode.cu_seqlens.data = decode.state.data = nullptr;
  bytes = 1;
  EXPECT_EQ(inquire(decode, &bytes), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(bytes, 0);
}

TEST(Validate, FillsParams) {
  const Problem problem(kEverything, 3, FLASH_KDA_BACKEND_CPU);
  const Forward args = problem.forward_args();
  const Params p = validate(args, Purpose::kRun);
  EXPECT_EQ(p.op, Operator::kForward);
  EXPECT_EQ(p.B, 1);
  EXPECT_EQ(p.T, 83);
  EXPECT_EQ(p.N, 9);
  EXPECT_EQ(p.H, 2);
  EXPECT_EQ(p.HV, 4);
  EXPECT_EQ(p.K, 8);
  EXPECT_EQ(p.V, 4);
  EXPECT_EQ(p.M, 2);
  EXPECT_EQ(p.scale, 1 / std::sqrt(8.0F));
  EXPECT_EQ(p.v.stride_token, 16);
  EXPECT_EQ(p.v.stride_head, 4);
  EXPECT_EQ(p.beta.stride_token, 4);
  EXPECT_EQ(p.initial_state.slots, 21);
  EXPECT_EQ(p.initial_state.stride_slot, 4 * 4 * 8 + 24);
  EXPECT_EQ(p.initial_state.index, args.read_index.data);
  EXPECT_EQ(p.final_state.index, args.write_index.data);
  EXPECT_EQ(p.has_initial_state, args.has_initial_state.data);
  EXPECT_EQ(p.checkpoint_state.index, args.checkpoint_index.data);
  EXPECT_FALSE(p.cu_seqlens_is_64bit);
}

TEST(Validate, DecodeWritesWhereItReadsWithoutAWriteIndex) {
  const Problem problem(kDecode, 3, FLASH_KDA_BACKEND_CPU);
  Decode args = problem.decode_args();
  args.write_index = {};
  const Params p = validate(args, Purpose::kRun);
  EXPECT_EQ(p.op, Operator::kDecode);
  EXPECT_EQ(p.initial_state.index, args.read_index.data);
  EXPECT_EQ(p.final_state.index, args.read_index.data);
  EXPECT_EQ(p.final_state.data, p.initial_state.data);
}

}  // namespace
}  // namespace flash_kda::test

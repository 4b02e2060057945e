// What a call does to the machine around it: devices, streams, graphs, allocations, other calls at the same time; and
// bits that must not change. Ids as in docs/cases.md.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/cases.h"
#include "cuda/device_memory.h"
#include "cuda/device_tensors.h"
#include "cuda/solve.h"
#include "support/compare.h"

namespace flash_kda::test {
namespace {

using Args = flash_kda_forward_args;
using cuda::check;
constexpr auto kPool = StateRows::kPool;
constexpr auto kProbabilities = FLASH_KDA_BETA_PROBABILITIES;

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// A problem on the GPU with a stream of its own.
struct Call {
  explicit Call(const Case& c, const Change& change = {}) : problem(problem_of(c, change)), device(problem) {}

  flash_kda_status enqueue() const {
    Args args = device.args();
    args.stream = stream;
    return flash_kda_forward(&args);
  }

  Problem problem;
  DeviceProblem device;
  Stream stream;
};

/// "" if every byte of memory is the same, inputs, gaps and guards included.
std::string byte_difference(const Problem& a, const Problem& b) {
  for (size_t i = 0; i < a.blocks().size(); ++i)
    if (std::memcmp(a.blocks()[i].data(), b.blocks()[i].data(), a.blocks()[i].size) != 0) return bitwise_faults(a, b);
  return "";
}

// ---- C37 to C42 ----

TEST(RunTime, C37_SecondCallLeavesTheFirstOutputAlone) {
  Call first(bf16({.T = 100})), second(bf16({.T = 130, .H = 3}));
  ASSERT_EQ(first.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  first.device.download(first.problem);
  first.problem.take_snapshot();
  ASSERT_EQ(second.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  first.device.download(first.problem);
  EXPECT_EQ(first.problem.stray_writes(true), "");
}

TEST(RunTime, C38_InputsAreNotWritten) {
  for (Layout layout : {Layout::kPacked, Layout::kFused})
    EXPECT_EQ(solve(bf16({.B = 2, .T = 75, .layout = layout})).stray_writes(), "");
}

/// On every GPU of the machine while GPU 0 is current; with two or more the two differ.
TEST(RunTime, C39_CurrentDeviceStaysCurrent) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  const Case c = bf16({.T = 100});
  const Problem expected = solve(c);
  for (int device = 0; device < count; ++device) {
    const Problem problem = problem_of(c);
    check(cudaSetDevice(device), "cudaSetDevice");
    const DeviceProblem there(problem);
    const Stream stream;
    check(cudaSetDevice(0), "cudaSetDevice");
    Args args = there.args();
    args.device = device;
    args.stream = stream;
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    int current = -1;
    check(cudaGetDevice(&current), "cudaGetDevice");
    EXPECT_EQ(current, 0);
    stream.synchronize();
    there.download(problem);
    EXPECT_EQ(bitwise_faults(problem, expected), "") << "device " << device;
  }
}

TEST(RunTime, C40_NoAllocation) {
  const Call call(bf16({.B = 3, .T = 700, .H = 12}));
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  };
  ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();  // CUDA loads the kernels
  const size_t before = free_bytes();
  for (int i = 0; i < 50; ++i) ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(free_bytes(), before);
}

TEST(RunTime, C40_CallReturnsBeforeTheWorkIsDone) {
  const Call call(bf16({.T = 100}));
  ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  call.stream.synchronize();
  const DeviceMemory byte(1);
  copy_late(byte.get(), byte.get(), 1, 200, call.stream);
  ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(cudaStreamQuery(call.stream), cudaErrorNotReady);
  call.stream.synchronize();
}

/// Capture in global mode fails on allocation, synchronisation and host copies; the graph then runs on whatever the
/// device tensors hold, cu_seqlens and indices included.
TEST(RunTime, C40_CaptureAndReplayWithOtherContents) {
  const Case first = bf16(
      {.lengths = {20, 1, 100, 16, 3, 40, 7, 13}, .rows_after = 10, .initial = kPool, .final = kPool, .flags = true});
  Case second = first;
  second.lengths = {0, 64, 1, 1, 90, 33, 11, 5};
  second.rows_after = 5;
  ASSERT_EQ(first.tokens(), second.tokens());
  second.family = Family::kF5;
  const Change other_rows = [](const Problem& p) {
    for (const char* name : {"read_index", "write_index"}) {
      auto* const index = static_cast<int32_t*>(p.tensor(name).data);
      std::swap(index[0], index[2]);
    }
    static_cast<uint8_t*>(p.tensor("has_initial_state").data)[0] = 0;
  };
  Call call(first);
  ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();  // CUDA loads the kernels
  call.stream.synchronize();

  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(call.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const flash_kda_status status = call.enqueue();
  check(cudaStreamEndCapture(call.stream, &graph), "cudaStreamEndCapture");
  ASSERT_EQ(status, FLASH_KDA_OK) << flash_kda_last_error();
  size_t nodes = 0;
  check(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
  EXPECT_EQ(nodes, plan_of(first).path == Path::kCudaFused ? 1U : 2U) << "the kernels and nothing else";
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  for (const auto& [c, change] : {std::pair{second, other_rows}, {first, {}}, {second, other_rows}}) {
    const Problem problem = problem_of(c, change);
    call.device.upload(problem);
    check(cudaGraphLaunch(executable, call.stream), "cudaGraphLaunch");
    call.device.download(problem);
    EXPECT_EQ(faults(problem, solve_by_oracle(c, change), bf16_tolerance(c)), "") << c;
  }
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST(RunTime, C41_RepeatedSample) {
  const auto repeat_first = [](const Problem& p) {
    for (const char* name : {"q", "k", "v", "g", "beta", "initial_state"}) {
      const flash_kda_tensor& t = p.tensor(name);
      assign(p, name, [&](const int64_t* at) {
        std::vector<int64_t> first(at, at + t.rank);
        first[0] = 0;
        return get(t, first.data());
      });
    }
  };
  for (bool batch_invariant : {true, false}) {
    const Case one = bf16({.B = 1, .T = 300, .H = 3, .batch_invariant = batch_invariant});
    Case many = one;
    many.B = 8;
    const Problem single = solve(one), batch = solve(many, repeat_first);
    for (const char* name : {"out", "final_state"})
      for (int64_t b = 0; b < 8; ++b) {
        const flash_kda_tensor row = slice(batch.tensor(name), 0, b, 1);
        if (batch_invariant)
          EXPECT_EQ(bitwise_difference(row, single.tensor(name)), "") << name << ' ' << b;
        else
          EXPECT_LE(compare(row, row, single.tensor(name), 1).relative, bf16_tolerance(one)) << name << ' ' << b;
      }
  }
}

/// Every crossing between ordinary accesses and the copy engine, many times over (docs/async-proxy.md), with the same
/// bits each time. The workspace is poisoned before each call, so that a tile read too early is NaN and not the right
/// one of the call before; another stream keeps the multiprocessors busy at varying times.
TEST(RunTime, C42_StressLoopRepeatsBitForBit) {
  const Call noise(bf16({.lengths = {1, 300, 17, 64, 5}}));
  for (const Case& c :
       {bf16({.T = 700}), bf16({.H = 12, .lengths = {1, 500, 16, 33, 15, 200, 2}}),
        fp32_gate({.B = 40, .T = 50, .H = 4}), bf16({.H = 1, .lengths = std::vector<int64_t>(200, 7)})}) {
    const Problem pristine = problem_of(c);
    Call call(c);
    std::unique_ptr<Problem> first;
    for (int round = 0; round < 60; ++round) {
      call.device.upload(pristine);
      check(cudaMemset(call.device.workspace(), kPoison, call.device.args().workspace_size), "cudaMemset");
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      for (int i = 0; i < round % 4; ++i) ASSERT_EQ(noise.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
      ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
      call.device.download(call.problem);
      if (round == 0) {
        ASSERT_EQ(faults(call.problem, solve_by_oracle(c), bf16_tolerance(c)), "") << c;
        first = std::make_unique<Problem>(problem_of(c));
        call.device.download(*first);
      }
      ASSERT_EQ(byte_difference(call.problem, *first), "") << c << " round " << round;
    }
  }
}

/// With all the helpers that the plan has, with those for which half of the workspace has place, and with none.
TEST(RunTime, HelpChangesNoBit) {
  for (Case c : {bf16({.T = 3000, .H = 5}), bf16({.H = 12, .lengths = {1500, 3, 700}})}) {
    c.cuda_path = FLASH_KDA_CUDA_PATH_FUSED;
    ASSERT_GT(plan_of(c).helpers, 0) << c;
    const Problem pristine = problem_of(c), expected = solve_by_oracle(c);
    Call call(c);
    std::unique_ptr<Problem> first;
    const size_t whole = call.device.args().workspace_size;
    for (size_t bytes : {whole, whole / 2, size_t{0}})
      for (int round = 0; round < 10; ++round) {
        call.device.upload(pristine);
        check(cudaMemset(call.device.workspace(), kPoison, whole), "cudaMemset");
        Args args = call.device.args();
        args.workspace_size = bytes;
        if (bytes == 0) args.workspace = nullptr;
        ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
        call.device.download(call.problem);
        if (first == nullptr) {
          ASSERT_EQ(faults(call.problem, expected, bf16_tolerance(c)), "") << c;
          first = std::make_unique<Problem>(problem_of(c));
          call.device.download(*first);
        }
        ASSERT_EQ(byte_difference(call.problem, *first), "") << c << ", workspace " << bytes << ", round " << round;
      }
  }
}

/// Calls in a row on one stream share the workspace: the second one must not write it while the first still reads.
TEST(RunTime, C42_OneWorkspaceForCallsInARow) {
  const Case c = bf16({.T = 700, .H = 4});
  Case other = c;
  other.family = Family::kF5;
  const Problem expected = solve(c);
  const Problem expected_other = solve(other);
  Call call(c);
  const Call second(other);
  Args args = second.device.args();
  args.stream = call.stream;
  args.workspace = call.device.workspace();
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
  }
  call.device.download(call.problem);
  EXPECT_EQ(bitwise_faults(call.problem, expected), "");
  second.device.download(second.problem);
  EXPECT_EQ(bitwise_faults(second.problem, expected_other), "");
}

/// A kernel of the caller that lets its dependents start early must still be waited for, with and without tokens.
TEST(RunTime, InputsOfAKernelThatIsStillRunning) {
  for (int64_t T : {0, 1, 100}) {
    const Case c = bf16({.T = T});
    const Problem expected = solve(c), problem = problem_of(c);
    const DeviceProblem device(problem);
    const Stream stream;
    Args args = device.args();
    args.stream = stream;
    constexpr size_t kBytes = sizeof(float) * 2 * 128 * 128;
    const DeviceMemory late(kBytes);
    check(cudaMemcpy(late.get(), args.initial_state.data, kBytes, cudaMemcpyDeviceToDevice), "cudaMemcpy");
    check(cudaMemset(args.initial_state.data, kPoison, kBytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    copy_late(args.initial_state.data, late.get(), kBytes, 20, stream);
    ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    device.download(problem);
    EXPECT_EQ(bitwise_faults(problem, expected), "") << T;
    EXPECT_EQ(problem.stray_writes(), "") << T;
  }
}

/// An error that the caller left behind is neither reported as ours nor taken away.
TEST(RunTime, ErrorsOfTheCallerStayTheCallers) {
  const Call call(bf16({.T = 100}));
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, size_t{1} << 60), cudaErrorMemoryAllocation);
  EXPECT_EQ(call.enqueue(), FLASH_KDA_OK) << flash_kda_last_error();
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  call.stream.synchronize();
}

// ---- Threads and streams ----

TEST(RunTime, CallsFromThreadsAtOnceEqualCallsInARow) {
  constexpr int kThreads = 4, kRounds = 50;
  const std::vector<Case> cases{
      bf16({.T = 300}),
      bf16({.lengths = {1, 40, 0, 17, 500}, .initial = kPool, .final = kPool}),
      fp32_gate({.B = 5, .T = 64, .H = 8}),
  };
  std::vector<Problem> serial;
  serial.reserve(cases.size());
  for (const Case& c : cases) serial.push_back(solve(c));
  std::vector<std::string> faults(kThreads);
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      std::vector<std::unique_ptr<Call>> calls;
      calls.reserve(cases.size());
      for (const Case& c : cases) calls.push_back(std::make_unique<Call>(c));
      for (int round = 0; round < kRounds; ++round)
        for (size_t i = 0; i < calls.size(); ++i)
          if (calls[(i + thread) % calls.size()]->enqueue() != FLASH_KDA_OK) faults[thread] += flash_kda_last_error();
      for (size_t i = 0; i < calls.size(); ++i) {
        calls[i]->device.download(calls[i]->problem);
        faults[thread] += bitwise_faults(calls[i]->problem, serial[i]);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
}

// ---- Bits ----

TEST(RunTime, SplitAtAMultipleOfTheChunk) {
  const Case c = bf16({.B = 2, .T = 107, .in_place = true});
  const int64_t chunk = plan_of(c).chunk;
  for (int64_t split = chunk; split < c.T; split += chunk) {
    const Problem whole = solve(c), parts = problem_of(c);
    const DeviceProblem device(parts);
    for (const Args& args : {slice_tokens(device.args(), 0, split), slice_tokens(device.args(), split, c.T - split)})
      ASSERT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    device.download(parts);
    EXPECT_EQ(bitwise_faults(parts, whole), "") << split;
  }
}

/// The elements of `names` for which poisoned(coordinates) become NaN.
template <typename Poisoned>
Change poison(std::vector<const char*> names, Poisoned poisoned) {
  return [=](const Problem& p) {
    for (const char* name : names)
      for_each_element(p.tensor(name), [&](const int64_t* at, int64_t) {
        if (poisoned(std::string(name), at)) set(p.tensor(name), at, std::numeric_limits<double>::quiet_NaN());
      });
  };
}

/// Outputs of `actual` for which kept(coordinates) have the bits of `clean`.
template <typename Kept>
void expect_kept(const Problem& actual, const Problem& clean, Kept kept) {
  for (const char* name : {"out", "final_state"}) {
    int64_t differing = 0;
    for_each_element(clean.tensor(name), [&](const int64_t* at, int64_t) {
      const double a = get(actual.tensor(name), at), e = get(clean.tensor(name), at);
      differing += kept(std::string(name), at) && !(a == e);
    });
    EXPECT_EQ(differing, 0) << name;
  }
}

TEST(RunTime, SmallNaNStaysInItsSequence) {
  const Case c = bf16({.H = 1, .lengths = {20, 33, 16, 40}});
  const auto of_second = [](const std::string& name, const int64_t* at) {
    return name.ends_with("state") ? at[0] == 1 : at[1] >= 20 && at[1] < 53;
  };
  const Problem clean = solve(c);
  const Problem dirty = solve(c, poison({"q", "k", "v", "g", "beta", "initial_state"}, of_second));
  expect_kept(dirty, clean, [&](const std::string& name, const int64_t* at) { return !of_second(name, at); });
  EXPECT_TRUE(std::isnan(get(dirty.tensor("out"), {0, 20, 0, 0})));
}

TEST(RunTime, SmallNaNStaysInItsHead) {
  const Case c = bf16({.T = 40, .H = 3});
  const auto of_second = [](const std::string& name, const int64_t* at) {
    if (name == "A_log" || name == "dt_bias") return at[0] == 1;
    return name.ends_with("state") ? at[1] == 1 : at[2] == 1;
  };
  const Problem clean = solve(c);
  const Problem dirty = solve(c, poison({"q", "k", "v", "g", "beta", "A_log", "dt_bias", "initial_state"}, of_second));
  expect_kept(dirty, clean, [&](const std::string& name, const int64_t* at) { return !of_second(name, at); });
  EXPECT_TRUE(std::isnan(get(dirty.tensor("out"), {0, 0, 1, 0})));
}

/// Long keys make the state grow without bound, so rows that belong to nobody must add nothing at all: thirteen inert
/// tokens (beta = 0) give the bits of a partial tile.
TEST(RunTime, C10_LongKeysWithoutNorm) {
  const auto inputs = [](const Problem& p) {
    const flash_kda_tensor& k = p.tensor("k");
    assign(p, "k", [&](const int64_t* at) { return (at[1] < 3 ? 30 : 1) * get(k, at); });
    assign(p, "g", [](const int64_t*) { return -1e6; });  // no decay: the anchor of a tile depends on all its rows
    const flash_kda_tensor& beta = p.tensor("beta");
    assign(p, "beta", [&](const int64_t* at) { return at[1] < 3 ? get(beta, at) : 0; });
  };
  const Problem partial = solve(bf16({.T = 3, .beta_form = kProbabilities, .l2norm = false}), inputs);
  const Problem inert = solve(bf16({.T = 16, .beta_form = kProbabilities, .l2norm = false}), inputs);
  EXPECT_EQ(bitwise_difference(partial.tensor("final_state"), inert.tensor("final_state")), "");
  EXPECT_EQ(bitwise_difference(partial.tensor("out"), slice(inert.tensor("out"), 1, 0, 3)), "");
  EXPECT_TRUE(std::isfinite(get(partial.tensor("out"), {0, 2, 0, 0})));
}

}  // namespace
}  // namespace flash_kda::test

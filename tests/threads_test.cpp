// Calls from several threads at once, each with its own outputs: bitwise what they are one after the other. Run under
// the thread sanitizer, which sees what the comparison cannot.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "support/compare.h"
#include "support/problem.h"

namespace flash_kda::test {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 3;

const std::vector<Case> kCases{
    {.T = 70, .H = 2, .K = 32},
    {.H = 2,
     .K = 32,
     .lengths = {1, 40, 0, 17},
     .initial = StateRows::kPool,
     .final = StateRows::kPool,
     .in_place = true},
    {.T = 130, .H = 1, .K = 64, .qkv = FLASH_KDA_BF16, .out = FLASH_KDA_BF16, .checkpoints = {{0, 64}, {0, 128}}},
    {.B = 3,
     .T = 8,
     .H = 2,
     .HV = 4,
     .K = 32,
     .family = Family::kTrained,
     .gate = FLASH_KDA_GATE_SOFTPLUS,
     .in_place = true},
};

flash_kda_status run(const Problem& problem, int num_threads) {
  if (problem.shape().in_place && problem.shape().T == 8) {
    flash_kda_decode_args args = problem.decode_args();
    args.num_threads = num_threads;
    return flash_kda_decode(&args);
  }
  flash_kda_forward_args args = problem.forward_args();
  args.num_threads = num_threads;
  return flash_kda_forward(&args);
}

std::string name_of_backend(const testing::TestParamInfo<flash_kda_backend>& row) {
  return row.param == FLASH_KDA_BACKEND_CPU ? "Cpu" : "Reference";
}

class Threads : public testing::TestWithParam<flash_kda_backend> {};

TEST_P(Threads, CallsAtOnceEqualCallsInARow) {
  std::vector<Problem> serial;
  for (const Case& c : kCases) {
    serial.emplace_back(c, 5, GetParam());
    ASSERT_EQ(run(serial.back(), 1), FLASH_KDA_OK) << flash_kda_last_error();
  }
  std::vector<std::string> faults(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round)
        for (size_t i = 0; i < kCases.size(); ++i) {
          const size_t which = (i + static_cast<size_t>(thread)) % kCases.size();
          const Problem problem(kCases[which], 5, GetParam());
          if (run(problem, 2) != FLASH_KDA_OK) faults[static_cast<size_t>(thread)] += flash_kda_last_error();
          faults[static_cast<size_t>(thread)] += bitwise_faults(problem, serial[which]) + problem.stray_writes();
        }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) EXPECT_EQ(fault, "");
}

/// Inputs and parameters may be shared; only outputs must be the call's own.
TEST_P(Threads, InputsMayBeShared) {
  const Problem inputs(kCases[0], 5, GetParam());
  ASSERT_EQ(run(inputs, 1), FLASH_KDA_OK) << flash_kda_last_error();
  std::vector<Problem> outputs;
  outputs.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) outputs.emplace_back(kCases[0], 5, GetParam());
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (const Problem& own : outputs)
    threads.emplace_back([&] {
      flash_kda_forward_args args = inputs.forward_args();
      args.out = own.tensor("out");
      args.final_state = own.tensor("final_state");
      EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_OK) << flash_kda_last_error();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Problem& own : outputs) EXPECT_EQ(bitwise_faults(own, inputs), "");
}

INSTANTIATE_TEST_SUITE_P(Backends, Threads, testing::Values(FLASH_KDA_BACKEND_CPU, FLASH_KDA_BACKEND_REFERENCE),
                         name_of_backend);

TEST(ThreadSafety, MessagesStayWithTheirThreads) {
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([thread] {
      for (int round = 0; round < 100; ++round) {
        const Problem problem(kCases[0], 5, FLASH_KDA_BACKEND_CPU);
        flash_kda_forward_args args = problem.forward_args();
        args.device = -1 - thread;
        EXPECT_EQ(flash_kda_forward(&args), FLASH_KDA_ERROR_VALUE);
        EXPECT_EQ(std::string(flash_kda_last_error()),
                  fmt::format("device: got {}, accepted is 0 or more", args.device));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ThreadSafety, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Case& c : kCases) {
    const Problem one(c, 5, FLASH_KDA_BACKEND_CPU);
    ASSERT_EQ(run(one, 1), FLASH_KDA_OK) << flash_kda_last_error();
    for (int threads : {2, 3, 8, 1 << 30}) {
      const Problem many(c, 5, FLASH_KDA_BACKEND_CPU);
      ASSERT_EQ(run(many, threads), FLASH_KDA_OK) << flash_kda_last_error();
      EXPECT_EQ(bitwise_faults(many, one), "") << c << ", " << threads << " threads";
    }
  }
}

class ForkedProcess : public testing::TestWithParam<flash_kda_backend> {};

/// The child has none of its parent's threads; GNU's OpenMP would wait for them.
TEST_P(ForkedProcess, ComputesWhatItsParentDoes) {
  const Problem before(kCases[0], 5, GetParam());
  ASSERT_EQ(run(before, 2), FLASH_KDA_OK) << flash_kda_last_error();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    const Problem after(kCases[0], 5, GetParam());
    _exit(run(after, 2) == FLASH_KDA_OK && bitwise_faults(after, before).empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, ForkedProcess, testing::Values(FLASH_KDA_BACKEND_CPU, FLASH_KDA_BACKEND_REFERENCE),
                         name_of_backend);

}  // namespace
}  // namespace flash_kda::test

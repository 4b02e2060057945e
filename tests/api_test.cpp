// The rest of the C interface: defaults, inquiries, texts, errors.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "support/problem.h"

namespace flash_kda::test {
namespace {

const Case kSmall{.B = 2, .T = 3, .H = 1, .K = 8};

TEST(Api, InitSetsTheDocumentedDefaults) {
  flash_kda_forward_args forward;
  std::memset(&forward, kPoison, sizeof forward);
  flash_kda_forward_args_init(&forward);
  flash_kda_decode_args decode;
  std::memset(&decode, kPoison, sizeof decode);
  flash_kda_decode_args_init(&decode);
  const auto check = [](const auto& args) {
    EXPECT_EQ(args.struct_size, sizeof args);
    EXPECT_EQ(args.scale, FLASH_KDA_DEFAULT_SCALE);
    EXPECT_EQ(args.lower_bound, -5.0F);
    EXPECT_EQ(args.gate, FLASH_KDA_GATE_BOUNDED);
    EXPECT_EQ(args.beta_form, FLASH_KDA_BETA_LOGITS);
    EXPECT_EQ(args.l2norm, 1);
    EXPECT_EQ(args.batch_invariant, 0);
    EXPECT_EQ(args.check_cu_seqlens, 0);
    EXPECT_EQ(args.backend, FLASH_KDA_BACKEND_CPU);
    EXPECT_EQ(args.device, 0);
    EXPECT_EQ(args.num_threads, 0);
    EXPECT_EQ(args.stream, nullptr);
    EXPECT_EQ(args.workspace, nullptr);
    EXPECT_EQ(args.workspace_size, 0U);
    for (const flash_kda_tensor* t :
         {&args.q, &args.A_log, &args.cu_seqlens, &args.read_index, &args.has_initial_state, &args.out}) {
      EXPECT_EQ(t->rank, 0);
      EXPECT_EQ(t->data, nullptr);
    }
  };
  check(forward);
  check(decode);
}

TEST(Api, NullPointersAreRefusedByName) {
  const Problem problem(kSmall, 1, FLASH_KDA_BACKEND_CPU);
  const flash_kda_forward_args args = problem.forward_args();
  char text[8];
  const auto expect = [](flash_kda_status status, const char* name) {
    EXPECT_EQ(status, FLASH_KDA_ERROR_TYPE);
    EXPECT_EQ(std::string(flash_kda_last_error()), std::string(name) + ": required, but null");
  };
  size_t bytes = 0;
  expect(flash_kda_forward(nullptr), "args");
  expect(flash_kda_decode(nullptr), "args");
  expect(flash_kda_forward_workspace_size(nullptr, &bytes), "args");
  expect(flash_kda_forward_workspace_size(&args, nullptr), "bytes");
  expect(flash_kda_decode_workspace_size(nullptr, &bytes), "args");
  expect(flash_kda_forward_describe(nullptr, text, sizeof text), "args");
  expect(flash_kda_forward_describe(&args, nullptr, 8), "text");
  expect(flash_kda_decode_describe(nullptr, text, sizeof text), "args");
  expect(flash_kda_info(nullptr, 8), "text");
}

TEST(Api, TextsAreCutToTheCapacityAndTerminated) {
  const Problem problem(kSmall, 1, FLASH_KDA_BACKEND_CPU);
  const flash_kda_forward_args args = problem.forward_args();
  char text[8];
  std::memset(text, 'x', sizeof text);
  ASSERT_EQ(flash_kda_forward_describe(&args, text, 5), FLASH_KDA_OK);
  EXPECT_EQ(std::string(text), "path");
  EXPECT_EQ(text[5], 'x');
  ASSERT_EQ(flash_kda_forward_describe(&args, text, 1), FLASH_KDA_OK);
  EXPECT_EQ(std::string(text), "");
  EXPECT_EQ(flash_kda_forward_describe(&args, text, 0), FLASH_KDA_ERROR_VALUE);
  EXPECT_EQ(std::string(flash_kda_last_error()), "capacity: got 0, accepted is 1 or more bytes");
}

TEST(Api, DescribeSaysWhichPathAndWhy) {
  char text[512];
  const Problem forward(kSmall, 1, FLASH_KDA_BACKEND_CPU);
  const flash_kda_forward_args args = forward.forward_args();
  ASSERT_EQ(flash_kda_forward_describe(&args, text, sizeof text), FLASH_KDA_OK);
  EXPECT_EQ(std::string(text).rfind("path=cpu/chunked ", 0), 0U) << text;
  EXPECT_NE(std::string(text).find(" reason="), std::string::npos) << text;
  const Problem decode({.B = 1, .T = 1, .in_place = true}, 1, FLASH_KDA_BACKEND_CPU);
  const flash_kda_decode_args decode_args = decode.decode_args();
  ASSERT_EQ(flash_kda_decode_describe(&decode_args, text, sizeof text), FLASH_KDA_OK);
  EXPECT_EQ(std::string(text).rfind("path=cpu/recurrent ", 0), 0U) << text;
}

TEST(Api, InfoIsJsonAboutThisBuildAndMachine) {
  std::string text(1 << 16, '\0');
  ASSERT_EQ(flash_kda_info(text.data(), text.size()), FLASH_KDA_OK);
  const auto info = nlohmann::json::parse(text.c_str());
  EXPECT_EQ(info["version"], FLASH_KDA_VERSION);
  EXPECT_EQ(info["version"], flash_kda_version());
  EXPECT_FALSE(info["build"]["compiler"].get<std::string>().empty());
  EXPECT_FALSE(info["build"]["source_digest"].get<std::string>().empty());
  EXPECT_GE(info["cpu"]["threads"], 1);
  EXPECT_EQ(info["cpu"]["instruction_sets"].back(), "portable");
  const bool available = info["cuda"]["available"];
  EXPECT_EQ(available, !info["cuda"]["devices"].empty());
  EXPECT_TRUE(available || !info["cuda"]["why"].get<std::string>().empty());
}

TEST(Api, LastErrorBelongsToTheThread) {
  flash_kda_forward(nullptr);
  const std::string mine = flash_kda_last_error();
  EXPECT_FALSE(mine.empty());
  std::thread([] {
    EXPECT_STREQ(flash_kda_last_error(), "");
    flash_kda_info(nullptr, 1);
    EXPECT_STREQ(flash_kda_last_error(), "text: required, but null");
  }).join();
  EXPECT_EQ(flash_kda_last_error(), mine);
}

}  // namespace
}  // namespace flash_kda::test

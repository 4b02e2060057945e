// The safetensors reader against files it must refuse, and the writer against the reader.
#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "flash_kda/error.hpp"

namespace flash_kda::io {
namespace {

::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

/// A folder of this test alone, removed afterwards.
class SafetensorsFile : public ::testing::Test {
 protected:
  SafetensorsFile() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("flash_kda_io_") + test->name() + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~SafetensorsFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  std::filesystem::path folder_;
};

std::string contents(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A file with this header and data; `length` replaces the true header length.
std::string bytes_of(const std::string& header, const std::string& data, uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}
std::string bytes_of(const std::string& header, const std::string& data) {
  return bytes_of(header, data, header.size());
}

File parse(const std::string& bytes) { return parse_safetensors(std::as_bytes(std::span(bytes)), "mem"); }

Tensor filled(flash_kda_dtype dtype, std::vector<int64_t> shape) {
  Tensor tensor(dtype, std::move(shape));
  for (size_t i = 0; i < tensor.data.size(); ++i) tensor.data.data()[i] = static_cast<std::byte>(i * 37 + dtype);
  return tensor;
}

std::string message_of(const std::string& bytes) {
  try {
    parse(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), FLASH_KDA_ERROR_VALUE);
    return error.what();
  }
  return "accepted";
}

TEST_F(SafetensorsFile, RoundTripOfEveryTypeAndRank) {
  File file;
  file.metadata = {{"made by", "a \"test\"\n\xc3\xa9"}, {"empty", ""}};
  file.tensors["bool"] = filled(FLASH_KDA_BOOL, {3});
  file.tensors["bf16"] = filled(FLASH_KDA_BF16, {2, 3, 5});
  file.tensors["f16"] = filled(FLASH_KDA_F16, {1, 1, 1, 1, 7});
  file.tensors["f32"] = filled(FLASH_KDA_F32, {2, 2});
  file.tensors["f64"] = filled(FLASH_KDA_F64, {3});
  file.tensors["i32"] = filled(FLASH_KDA_I32, {5});
  file.tensors["i64"] = filled(FLASH_KDA_I64, {2});
  file.tensors["scalar"] = filled(FLASH_KDA_F32, {});
  file.tensors["nothing"] = filled(FLASH_KDA_F32, {4, 0, 2});
  write_safetensors(path("a"), file);

  const File read = read_safetensors(path("a"));
  EXPECT_EQ(read.metadata, file.metadata);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    ASSERT_TRUE(read.tensors.contains(name)) << name;
    const Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.dtype, tensor.dtype) << name;
    EXPECT_EQ(other.shape, tensor.shape) << name;
    ASSERT_EQ(other.data.size(), tensor.data.size()) << name;
    EXPECT_EQ(std::memcmp(other.data.data(), tensor.data.data(), tensor.data.size()), 0) << name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(other.data.data()) % 64, 0U) << name;
  }
  EXPECT_EQ(read.tensors.at("scalar").elements(), 1);
  EXPECT_EQ(read.tensors.at("nothing").elements(), 0);

  // The parser of a span sees the same, and writing again gives the same bytes.
  const File again = parse(contents(path("a")));
  EXPECT_EQ(again.metadata, file.metadata);
  write_safetensors(path("b"), again);
  EXPECT_EQ(contents(path("a")), contents(path("b")));
}

TEST_F(SafetensorsFile, AFileWithoutTensors) {
  write_safetensors(path("a"), {});
  EXPECT_EQ(contents(path("a")), bytes_of("{}      ", ""));
  EXPECT_TRUE(read_safetensors(path("a")).tensors.empty());
}

TEST_F(SafetensorsFile, TensorsBeginAtAMultipleOfTheirElementInTheFile) {
  File file;
  file.tensors["a"] = filled(FLASH_KDA_BOOL, {3});
  file.tensors["b"] = filled(FLASH_KDA_F64, {1});
  write_safetensors(path("a"), file);
  const std::string bytes = contents(path("a"));
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  EXPECT_EQ(header % 8, 0U);
  EXPECT_TRUE(contains(bytes, R"("b":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"));
}

TEST_F(SafetensorsFile, WritingReplacesAFileAndLeavesNothingElse) {
  File file;
  file.tensors["x"] = filled(FLASH_KDA_F32, {2});
  write_safetensors(path("a"), file);
  file.tensors["x"] = filled(FLASH_KDA_F32, {3});
  write_safetensors(path("a"), file);
  EXPECT_EQ(read_safetensors(path("a")).tensors.at("x").elements(), 3);
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(SafetensorsFile, WritingThroughALinkKeepsTheLink) {
  std::ofstream(path("target")) << "old";
  std::filesystem::create_symlink("target", path("link"));
  write_safetensors(path("link"), {});
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(contents(path("target")), bytes_of("{}      ", ""));
}

TEST_F(SafetensorsFile, ANameWithoutAFolderIsInTheCurrentOne) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  write_safetensors("new", {});
  std::filesystem::current_path(before);
  EXPECT_EQ(names(), std::vector<std::string>{"new"});
}

TEST_F(SafetensorsFile, AFailedWriteLeavesTheOldFile) {
  write_safetensors(path("a"), {});
  const std::string before = contents(path("a"));
  File file;
  file.metadata["not UTF-8"] = "\xff";
  const auto message = [&] {
    try {
      write_safetensors(path("a"), file);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(contains(message(), "accepted is UTF-8"));
  file.metadata.clear();
  file.tensors["__metadata__"] = filled(FLASH_KDA_F32, {1});
  EXPECT_TRUE(contains(message(), "got a tensor named '__metadata__', accepted is another name"));
  EXPECT_EQ(contents(path("a")), before);
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(SafetensorsFile, WritingKeepsTheMode) {
  namespace fs = std::filesystem;
  std::ofstream(path("a")) << "old";
  constexpr fs::perms kMode = fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read;
  fs::permissions(path("a"), kMode);
  write_safetensors(path("a"), {});
  EXPECT_EQ(fs::status(path("a")).permissions(), kMode);
}

TEST_F(SafetensorsFile, ALongNameIsNoTrouble) {
  const std::string name(255, 'x');
  write_safetensors(path(name), {});
  EXPECT_EQ(names(), std::vector<std::string>{name});
}

TEST_F(SafetensorsFile, NothingIsThereBeforeTheWriting) {
  { const OutputFile unused(path("a")); }
  EXPECT_EQ(names(), std::vector<std::string>{});
  std::ofstream(path("a")) << "old";
  OutputFile output(path("a"));
  EXPECT_EQ(contents(path("a")), "old");
  const std::string text = "new";
  output.write({std::as_bytes(std::span(text))});
  EXPECT_EQ(contents(path("a")), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(SafetensorsFile, TemporaryFilesOfAnEarlierProcessOfTheSameNumberStay) {
  std::vector<std::string> left;
  for (int i = 0; i < 100; ++i) {
    left.push_back(".flashkda-" + std::to_string(getpid()) + "-" + std::to_string(i) + ".tmp");
    std::ofstream(path(left.back())) << "left";
  }
  write_safetensors(path("a"), {});
  for (const std::string& name : left) EXPECT_EQ(contents(path(name)), "left");
  EXPECT_EQ(names().size(), left.size() + 1);
  EXPECT_EQ(read_safetensors(path("a")).tensors.size(), 0U);
}

TEST_F(SafetensorsFile, OutputsThatCannotBeFiles) {
  const auto message = [](const std::string& where) {
    try {
      const OutputFile output(where);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(contains(message(""), "got an empty name"));
  EXPECT_TRUE(contains(message(path("no/such/file")), "does not exist"));
  EXPECT_TRUE(contains(message(folder_.string()), "not a regular file"));
  EXPECT_TRUE(contains(message("/dev/null"), "not a regular file"));
  EXPECT_TRUE(contains(message("/proc/new"), "/proc/new: cannot be written ("));  // a folder that takes no files
  std::filesystem::create_symlink("nowhere", path("link"));
  EXPECT_TRUE(contains(message(path("link")), "a link to a file that does not exist"));
  std::ofstream(path("read-only")) << "old";
  std::filesystem::permissions(path("read-only"), std::filesystem::perms::owner_read);
  EXPECT_TRUE(contains(message(path("read-only")), "got a read-only file"));
  EXPECT_EQ(message(path("new")), "accepted");
  EXPECT_EQ(names(), (std::vector<std::string>{"link", "read-only"}));
}

TEST_F(SafetensorsFile, FilesThatCannotBeWritten) {
  const std::string name(256, 'x');  // longer than a name may be
  try {
    write_safetensors(path(name), {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(
        error.what(),
        path(name) + ": got a name that no file can have (File name too long), accepted is a new or a regular file");
  }
  EXPECT_EQ(names(), std::vector<std::string>{});
}

TEST_F(SafetensorsFile, FilesThatCannotBeRead) {
  const auto message = [](const std::string& where) {
    try {
      read_safetensors(where);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message(path("missing")),
            path("missing") + ": cannot be opened (No such file or directory), accepted is a safetensors file");
  EXPECT_EQ(message(folder_.string()), folder_.string() + ": got a folder, accepted is a safetensors file");
  std::ofstream(path("empty")).close();
  EXPECT_TRUE(contains(message(path("empty")), "empty: got 0 bytes, accepted is a safetensors file"));
  std::ofstream(path("cut"), std::ios::binary)
      << bytes_of(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234");
  try {
    read_safetensors(path("cut"));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), path("cut")));
    EXPECT_TRUE(contains(error.what(), "tensor 'x'"));
  }
}

TEST(Safetensors, U8IsReadAsBool) {
  const File file = parse(bytes_of(R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "ab"));
  EXPECT_EQ(file.tensors.at("x").dtype, FLASH_KDA_BOOL);
}

TEST(Safetensors, PaddingBehindTheHeaderIsAccepted) {
  const File file = parse(bytes_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   )", "abcd"));
  EXPECT_EQ(file.tensors.at("x").elements(), 1);
}

TEST(Safetensors, MisalignedTensorsAreAlignedInMemory) {
  const File file = parse(bytes_of(
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})",
      "x12345678"));
  EXPECT_EQ(std::memcmp(file.tensors.at("b").data.data(), "12345678", 8), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors.at("b").data.data()) % 8, 0U);
}

TEST(Safetensors, AHugeShapeWithoutElementsIsEmpty) {
  const File file = parse(bytes_of(
      R"({"x":{"dtype":"F64","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]}})", ""));
  EXPECT_EQ(file.tensors.at("x").elements(), 0);
}

/// One tensor's entry around the part that is wrong.
std::string one(const std::string& entry, const std::string& data = "12345678") {
  return bytes_of(R"({"x":)" + entry + "}", data);
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* message;  ///< must be part of what is said
};

class MalformedFile : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedFile, IsRefusedByName) {
  const std::string message = message_of(GetParam().bytes);
  EXPECT_TRUE(contains(message, "mem"));
  EXPECT_TRUE(contains(message, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, MalformedFile,
    ::testing::Values(
        Malformed{"Empty", "", "got 0 bytes"},  //
        Malformed{"ShortLength", "1234567", "got 7 bytes"},
        Malformed{"HeaderPastTheEnd", bytes_of("{}", "", 3), "a header of 3 bytes in a file of 10"},
        Malformed{"HeaderAboveTheLimit", bytes_of("{}", "", 100'000'001), "accepted is at most 100000000"},
        Malformed{"HeaderLengthAllOnes", bytes_of("{}", "", ~uint64_t{0}), "accepted is at most 100000000"},
        Malformed{"EmptyHeader", bytes_of("", ""), "does not begin with '{'"},
        Malformed{"HeaderIsAList", bytes_of("[]", ""), "does not begin with '{'"},
        Malformed{"HeaderIsNotJson", bytes_of("{\"x\":", ""), "not JSON"},
        Malformed{"TwoDocuments", bytes_of("{}{}", ""), "not JSON"},
        Malformed{"HeaderIsNotUtf8", bytes_of("{\"\xff\":1}", ""), "not JSON"},
        Malformed{"HeaderNumberOverflows", one("1e999"), "not JSON"},
        Malformed{"DeepHeader", bytes_of("{\"x\":" + std::string(100000, '['), ""), "nested more than"},
        Malformed{"DeepObjects", bytes_of(R"({"x":{"y":{"z":{"w":1}}}})", ""), "nested more than"},
        Malformed{
            "DuplicateTensor",
            bytes_of(
                R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[],"data_offsets":[4,8]}})",
                "12345678"),
            "two entries named 'x'"},
        Malformed{"DuplicateMember", one(R"({"dtype":"F32","dtype":"F64","shape":[2],"data_offsets":[0,8]})"),
                  "two entries named 'dtype'"},
        Malformed{"DuplicateMetadata", bytes_of(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "two entries named 'a'"},
        Malformed{"MetadataIsAList", bytes_of(R"({"__metadata__":[]})", ""), "__metadata__: got no object"},
        Malformed{"MetadataValueIsANumber", bytes_of(R"({"__metadata__":{"a":1}})", ""), "got number for 'a'"},
        Malformed{"EntryIsANumber", one("1"), "tensor 'x': got no object"},
        Malformed{"UnknownMember", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"device":"cpu"})"),
                  "the member 'device'"},
        Malformed{"NoDtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), "no string 'dtype'"},
        Malformed{"DtypeIsANumber", one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "no string 'dtype'"},
        Malformed{"UnknownDtype", one(R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})"),
                  "got dtype F8_E4M3, accepted is F64"},
        Malformed{"NoShape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), "no list 'shape'"},
        Malformed{"ShapeIsANumber", one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "no list 'shape'"},
        Malformed{"NegativeExtent", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "got -2 in 'shape'"},
        Malformed{"FractionalExtent", one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"),
                  "got 2.0 in 'shape'"},
        Malformed{"ExtentIsAString", one(R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})"), "in 'shape'"},
        Malformed{"ExtentAboveInt64", one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
                  "in 'shape'"},
        Malformed{"ShapeOverflows", one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
                  "less than 2^63 bytes"},
        Malformed{"ShapeWrapsToTheRightSize",
                  one(R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})"), "less than 2^63 bytes"},
        Malformed{"ShapeAndSizeDiffer", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
                  "accepted are the 12 bytes"},
        Malformed{"NoOffsets", one(R"({"dtype":"F32","shape":[2]})"), "no list 'data_offsets'"},
        Malformed{"OneOffset", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "accepted is [begin, end]"},
        Malformed{"OffsetsReversed", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
                  "accepted is [begin, end]"},
        Malformed{"OffsetIsNegative", one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"),
                  "got -8 in 'data_offsets'"},
        Malformed{"OffsetsPastTheEnd", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
                  "accepted is up to 8"},
        Malformed{"OffsetsNearInt64Max",
                  one(R"({"dtype":"F32","shape":[2],"data_offsets":[9223372036854775799,9223372036854775807]})"),
                  "accepted is up to 8"},
        Malformed{"HoleBefore", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), "accepted is a begin of 0"},
        Malformed{"BytesBehind", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"),
                  "got 8 bytes behind the header"},
        Malformed{
            "Overlap",
            bytes_of(
                R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                "12345678"),
            "tensor 'y'"},
        Malformed{
            "SameBytesTwice",
            bytes_of(
                R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                "12345678"),
            "neither overlap"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace flash_kda::io

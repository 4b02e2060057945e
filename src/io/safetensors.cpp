#include "io/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "api/error.h"
#include "api/params.h"

namespace flash_kda::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors holds little-endian numbers; they are not converted here");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

struct Type {
  const char* in_file;
  flash_kda_dtype dtype;
  const char* name;
};

/// The first row of a dtype is the one that is written.
constexpr std::array<Type, 8> kTypes{{{"F64", FLASH_KDA_F64, "float64"},
                                      {"F32", FLASH_KDA_F32, "float32"},
                                      {"F16", FLASH_KDA_F16, "float16"},
                                      {"BF16", FLASH_KDA_BF16, "bfloat16"},
                                      {"I64", FLASH_KDA_I64, "int64"},
                                      {"I32", FLASH_KDA_I32, "int32"},
                                      {"BOOL", FLASH_KDA_BOOL, "bool"},
                                      {"U8", FLASH_KDA_BOOL, "bool"}}};

const Type& type_of(flash_kda_dtype dtype) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.dtype == dtype; });
}

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  fail(FLASH_KDA_ERROR_VALUE, format, std::forward<Args>(args)...);
}

/// Bytes of a tensor; false if that overflows int64.
bool byte_size(flash_kda_dtype dtype, const std::vector<int64_t>& shape, int64_t& bytes) {
  bytes = size_of(dtype);
  bool overflow = false;
  for (int64_t extent : shape) overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
  // An extent of 0 hides an overflow of the others; such a tensor has no elements, and its size is 0.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) bytes = 0, overflow = false;
  return !overflow;
}

// ---- Reading ----

/// What a file says of one tensor; offsets count from the end of the header.
struct Entry {
  std::string name;
  flash_kda_dtype dtype = FLASH_KDA_F32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// The JSON text as a document. Beyond what JSON asks, keys are unique and nothing is nested deeper than a header
/// needs.
nlohmann::json parse_json(std::string_view text, const std::string& file) {
  constexpr int kMaxDepth = 3;  // header, tensor, shape
  std::vector<std::set<std::string>> keys;
  const auto inspect = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get_ref<const std::string&>()).second)
      refuse("{}: got two entries named '{}' in the header, accepted is one", file,
             value.get_ref<const std::string&>());
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxDepth)
      refuse("{}: got a header nested more than {} levels deep, accepted is name -> dtype, shape, data_offsets", file,
             kMaxDepth);
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), inspect);
  } catch (const nlohmann::json::exception& error) {
    refuse("{}: got a header that is not JSON ({}), accepted is a safetensors file", file, error.what());
  }
}

/// Member `key` of a tensor's entry as a list of whole numbers that fit int64.
std::vector<int64_t> whole_numbers(const nlohmann::json& entry, const char* key, const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array())
    refuse("{}: got no list '{}', accepted is a list of whole numbers", where, key);
  std::vector<int64_t> numbers;
  for (const nlohmann::json& number : *found) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
      refuse("{}: got {} in '{}', accepted is a whole number from 0 to 2^63 - 1", where, number.dump(), key);
    numbers.push_back(number.get<int64_t>());
  }
  return numbers;
}

Entry parse_entry(const std::string& name, const nlohmann::json& json, const std::string& file) {
  const std::string where = fmt::format("{}: tensor '{}'", file, name);
  if (!json.is_object()) refuse("{}: got no object, accepted is one with dtype, shape and data_offsets", where);
  for (const auto& [key, value] : json.items())
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      refuse("{}: got the member '{}', accepted are dtype, shape and data_offsets", where, key);
  const auto dtype = json.find("dtype");
  if (dtype == json.end() || !dtype->is_string())
    refuse("{}: got no string 'dtype', accepted is one such as \"BF16\"", where);
  const auto& text = dtype->get_ref<const std::string&>();
  const auto* const type = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return text == t.in_file; });
  if (type == kTypes.end())
    refuse("{}: got dtype {}, accepted is F64, F32, F16, BF16, I64, I32, BOOL or U8", where, text);

  Entry entry{name, type->dtype, whole_numbers(json, "shape", where), 0, 0};
  const std::vector<int64_t> offsets = whole_numbers(json, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1])
    refuse("{}: got data_offsets [{}], accepted is [begin, end] with begin <= end", where, fmt::join(offsets, ", "));
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  int64_t bytes = 0;
  if (!byte_size(entry.dtype, entry.shape, bytes))
    refuse("{}: got shape [{}], accepted is less than 2^63 bytes", where, fmt::join(entry.shape, ", "));
  if (static_cast<uint64_t>(bytes) != entry.end - entry.begin)
    refuse("{}: got {} bytes at data_offsets [{}], accepted are the {} bytes of {} [{}]", where,
           entry.end - entry.begin, fmt::join(offsets, ", "), bytes, text, fmt::join(entry.shape, ", "));
  return entry;
}

/// Every byte behind the header belongs to exactly one tensor.
void check_places(std::vector<Entry>& entries, uint64_t data_bytes, const std::string& file) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.end > data_bytes)
      refuse("{}: tensor '{}': got data_offsets [{}, {}], accepted is up to {}, the bytes behind the header", file,
             entry.name, entry.begin, entry.end, data_bytes);
    if (entry.begin != covered)
      refuse(
          "{}: tensor '{}': got data_offsets [{}, {}], accepted is a begin of {}: tensors neither overlap nor leave "
          "holes",
          file, entry.name, entry.begin, entry.end, covered);
    covered = entry.end;
  }
  if (covered != data_bytes)
    refuse("{}: got {} bytes behind the header, accepted are the {} bytes of its tensors", file, data_bytes, covered);
}

/// `read(offset, target, size)` copies bytes of a source that has `total` of them.
template <typename Read>
File load(uint64_t total, const std::string& name, const Read& read) {
  if (total < kLengthBytes)
    refuse("{}: got {} bytes, accepted is a safetensors file: 8 bytes of header length first", name, total);
  uint64_t header_bytes = 0;
  read(0, reinterpret_cast<std::byte*>(&header_bytes), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes)
    refuse("{}: got a header of {} bytes, accepted is at most {} (is this a safetensors file?)", name, header_bytes,
           kMaxHeaderBytes);
  if (header_bytes > total - kLengthBytes)
    refuse("{}: got a header of {} bytes in a file of {}, accepted is a complete safetensors file", name, header_bytes,
           total);
  std::string text(header_bytes, '\0');
  read(kLengthBytes, reinterpret_cast<std::byte*>(text.data()), header_bytes);
  if (text.empty() || text.front() != '{')
    refuse("{}: got a header that does not begin with '{{', accepted is a JSON object", name);

  const nlohmann::json header = parse_json(text, name);
  File file;
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.items()) {
    if (key != kMetadata) {
      entries.push_back(parse_entry(key, value, name));
      continue;
    }
    if (!value.is_object()) refuse("{}: {}: got no object, accepted is one of strings", name, kMetadata);
    for (const auto& [field, content] : value.items()) {
      if (!content.is_string())
        refuse("{}: {}: got {} for '{}', accepted is a string", name, kMetadata, content.type_name(), field);
      file.metadata[field] = content.template get_ref<const std::string&>();
    }
  }
  const uint64_t data_begin = kLengthBytes + header_bytes;
  check_places(entries, total - data_begin, name);
  for (Entry& entry : entries) {
    Tensor tensor(entry.dtype, std::move(entry.shape));
    if (tensor.data.size() > 0) read(data_begin + entry.begin, tensor.data.data(), tensor.data.size());
    file.tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  return file;
}

// ---- Writing ----

constexpr const char* kOpenFiles = "/proc/self/fd";  // links to the files of the process

/// The file that writing to `path` replaces: links are followed, so that a link stays one.
std::filesystem::path target_of(const std::string& path) {
  if (path.empty()) refuse("output: got an empty name, accepted is the name of a file");
  std::error_code code;
  if (std::filesystem::is_symlink(path, code) && !std::filesystem::exists(path, code))
    refuse("{}: got a link to a file that does not exist, accepted is a new or a regular file", path);
  std::filesystem::path target = std::filesystem::weakly_canonical(std::filesystem::absolute(path), code);
  if (code)
    refuse("{}: got a name that no file can have ({}), accepted is a new or a regular file", path, code.message());
  return target;
}

/// Tensors in file order: large elements first, so that each begins at a multiple of its element's size.
std::vector<std::pair<std::string, const Tensor*>> file_order(const std::map<std::string, Tensor>& tensors) {
  std::vector<std::pair<std::string, const Tensor*>> order;
  order.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) order.emplace_back(name, &tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second->dtype) > size_of(b.second->dtype); });
  return order;
}

std::string header_of(const File& file, const std::string& path) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : file_order(file.tensors)) {
    if (name == kMetadata) refuse("{}: got a tensor named '{}', accepted is another name", path, name);
    const uint64_t end = begin + tensor->data.size();
    header[name] = {
        {"dtype", type_of(tensor->dtype).in_file}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  try {
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // the tensors behind it stay aligned in a file that is mapped
    if (text.size() > kMaxHeaderBytes)
      refuse("{}: got a header of {} bytes, accepted is at most {}", path, text.size(), kMaxHeaderBytes);
    return text;
  } catch (const nlohmann::json::exception& error) {
    refuse("{}: got a name or metadata that is not UTF-8 ({}), accepted is UTF-8", path, error.what());
  }
}

}  // namespace

Buffer::Buffer(size_t size) : size_(size) {
  constexpr size_t kAlignment = 64;
  if (size > SIZE_MAX - kAlignment) throw std::bad_alloc();
  // aligned_alloc asks for a multiple of the alignment; one unit for an empty buffer, so that data() is never null.
  void* memory = std::aligned_alloc(kAlignment, std::max<size_t>((size + kAlignment - 1) / kAlignment, 1) * kAlignment);
  if (memory == nullptr) throw std::bad_alloc();
  data_.reset(static_cast<std::byte*>(memory));
}

Tensor::Tensor(flash_kda_dtype type, std::vector<int64_t> extents) : dtype(type), shape(std::move(extents)) {
  int64_t bytes = 0;
  if (!byte_size(dtype, shape, bytes))
    refuse("tensor: got shape [{}], accepted is less than 2^63 bytes", fmt::join(shape, ", "));
  data = Buffer(static_cast<size_t>(bytes));
}

int64_t Tensor::elements() const { return static_cast<int64_t>(data.size()) / size_of(dtype); }

File parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  return load(bytes.size(), name, [&](uint64_t offset, std::byte* target, size_t size) {
    std::memcpy(target, bytes.data() + offset, size);
  });
}

File read_safetensors(const std::string& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) refuse("{}: got a folder, accepted is a safetensors file", path);
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) refuse("{}: cannot be opened ({}), accepted is a safetensors file", path, std::strerror(errno));
  const std::streamoff total = stream.tellg();
  if (total < 0) refuse("{}: has no size, accepted is a regular file", path);
  return load(static_cast<uint64_t>(total), path, [&](uint64_t offset, std::byte* target, size_t size) {
    stream.seekg(static_cast<std::streamoff>(offset));
    stream.read(reinterpret_cast<char*>(target), static_cast<std::streamsize>(size));
    if (!stream) refuse("{}: reading {} bytes at {} failed", path, size, offset);
  });
}

OutputFile::OutputFile(const std::string& path) : path_(path), target_(target_of(path)) {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path folder = target_.parent_path();
  if (!fs::is_directory(folder, code))
    refuse("{}: the folder {} does not exist, accepted is a file in an existing folder", path, folder.string());
  const fs::file_status status = fs::status(target_, code);
  const bool replaces = fs::exists(status);
  if (replaces && !fs::is_regular_file(status))
    refuse("{}: got something that is not a regular file, accepted is a new or a regular file", path);
  constexpr fs::perms kWritable = fs::perms::owner_write | fs::perms::group_write | fs::perms::others_write;
  if (replaces && ((status.permissions() & kWritable) == fs::perms::none || access(target_.c_str(), W_OK) != 0))
    refuse("{}: got a read-only file, accepted is a new file or one that may be written", path);

  if (access(kOpenFiles, X_OK) == 0) descriptor_ = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {  // a file system without files that have no name, or no way to name them later
    descriptor_ =
        with_new_name([](const char* name) { return open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    named_ = descriptor_ >= 0;
  }
  if (descriptor_ < 0) fail_to_write(std::strerror(errno), 0);
  // A file system without modes may refuse, and then has none to keep.
  if (replaces) static_cast<void>(fchmod(descriptor_, static_cast<mode_t>(status.permissions())));
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (named_) unlink(temporary_.c_str());
}

template <typename Make>
int OutputFile::with_new_name(const Make& make) {
  static std::atomic<int> count = 0;
  int result = 0;
  do {
    temporary_ = target_.parent_path() / fmt::format(".flashkda-{}-{}.tmp", getpid(), ++count);
    result = make(temporary_.c_str());
  } while (result < 0 && errno == EEXIST);  // left by a process of the same number
  return result;
}

void OutputFile::fail_to_write(const char* reason, size_t bytes) const {
  refuse("{}: cannot be written ({}), accepted is a file in a folder that takes new files and has room for {} bytes",
         path_, reason, bytes);
}

void OutputFile::write(const std::vector<std::span<const std::byte>>& parts) {
  size_t total = 0;
  for (const std::span<const std::byte> part : parts) total += part.size();
  for (std::span<const std::byte> rest : parts) {
    while (!rest.empty()) {
      const ssize_t written = ::write(descriptor_, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_to_write(std::strerror(errno), total);
      rest = rest.subspan(static_cast<size_t>(written));
    }
  }
  // A link cannot replace a file, a renaming can.
  const std::string unnamed = fmt::format("{}/{}", kOpenFiles, descriptor_);
  named_ = named_ || with_new_name([&](const char* name) {
                       return linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW);
                     }) == 0;
  if (!named_ || rename(temporary_.c_str(), target_.c_str()) != 0) fail_to_write(std::strerror(errno), total);
  named_ = false;
}

void write_safetensors(OutputFile& output, const File& file) {
  const std::string header = header_of(file, output.path());
  const uint64_t header_bytes = header.size();
  std::vector<std::span<const std::byte>> parts{std::as_bytes(std::span(&header_bytes, 1)),
                                                std::as_bytes(std::span(header))};
  for (const auto& [name, tensor] : file_order(file.tensors))
    parts.emplace_back(tensor->data.data(), tensor->data.size());
  output.write(parts);
}

void write_safetensors(const std::string& path, const File& file) {
  OutputFile output(path);
  write_safetensors(output, file);
}

const char* name_of(flash_kda_dtype dtype) { return type_of(dtype).name; }

}  // namespace flash_kda::io

#include "shard/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "shard/core/error.h"

namespace shard::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format has little-endian numbers");

using Json = nlohmann::ordered_json;

/// An open file; -1 where it could not be opened.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int number() const { return number_; }
  /// False where the system reports an error, which may be one of an earlier write.
  bool close() {
    const int number = std::exchange(number_, -1);
    return number < 0 || ::close(number) == 0;
  }

 private:
  int number_;
};

bool write_all(int file, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(file, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

/// The format's name of a dtype, which is our short one in capitals: "BF16".
std::string format_name(DType dtype) {
  std::string name = short_name(dtype);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c; });
  return name;
}

}  // namespace

void fail_errno(const char* op, const char* verb, const std::string& path) {
  fail(ErrorCode::invalid_argument, "[{}] cannot {} '{}': {}", op, verb, path, std::strerror(errno));
}

void write_file(const std::string& path, const std::vector<std::pair<const void*, size_t>>& parts) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  bool good = file.number() >= 0;
  for (const auto& [data, size] : parts) good = good && write_all(file.number(), static_cast<const char*>(data), size);
  good = good && ::fsync(file.number()) == 0 && file.close();
  if (!good) fail_errno("save_checkpoint", "write", path);
}

void write_safetensors(const std::string& path, const std::map<std::string, DenseTensor>& tensors) {
  // Larger elements come first, so that all are aligned to their size.
  std::vector<std::pair<const std::string*, const DenseTensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return size_of(a.second->dtype()) > size_of(b.second->dtype());
  });
  Json header = Json::object();
  std::vector<std::pair<const void*, size_t>> parts(2);
  size_t begin = 0;
  for (const auto& [name, tensor] : order) {
    const size_t bytes = tensor->meta().bytes();
    header[*name] = {{"dtype", format_name(tensor->dtype())},
                     {"shape", std::vector<int64_t>(tensor->dims().begin(), tensor->dims().end())},
                     {"data_offsets", {begin, begin + bytes}}};
    parts.emplace_back(tensor->raw(), bytes);
    begin += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  parts[0] = {&length, sizeof length};
  parts[1] = {text.data(), text.size()};
  write_file(path, parts);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) fail_errno("load_checkpoint", "read", path);
  size_ = static_cast<uint64_t>(status.st_size);
  if (size_ > 0) data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (data_ == MAP_FAILED) {
    data_ = nullptr;
    fail_errno("load_checkpoint", "read", path);
  }
  try {
    read_header();
  } catch (const nlohmann::json::exception& error) {
    if (data_ != nullptr) ::munmap(data_, size_);
    fail(ErrorCode::invalid_argument, "[load_checkpoint] '{}' is no file of the safetensors format: {}", path,
         error.what());
  }
}

SafetensorsFile::~SafetensorsFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void SafetensorsFile::read_header() {
  uint64_t length = 0;
  if (size_ >= sizeof length) std::memcpy(&length, data_, sizeof length);
  // A header that is longer than the file is cut off, and so no JSON.
  const uint64_t first = sizeof length + std::min(length, size_ - std::min<uint64_t>(size_, sizeof length));
  const char* const text = static_cast<const char*>(data_);
  const Json header = Json::parse(text + std::min<uint64_t>(size_, sizeof length), text + std::min(size_, first));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
    entries_[name] = {entry.at("dtype").get<std::string>(), entry.at("shape").get<std::vector<int64_t>>(),
                      first + begin, first + end};
  }
}

char* SafetensorsFile::elements(const std::string& name, const Meta& meta) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    fail(ErrorCode::invalid_argument, "[load_checkpoint] '{}' has no tensor '{}', which checkpoint.json says it has",
         path_, name);
  }
  const Entry& entry = found->second;
  const bool whole = entry.begin <= entry.end && entry.end <= size_ && entry.end - entry.begin == meta.bytes();
  if (!whole || entry.dtype != format_name(meta.dtype) ||
      !std::equal(entry.dims.begin(), entry.dims.end(), meta.dims.begin(), meta.dims.end())) {
    fail(ErrorCode::invalid_argument,
         "[load_checkpoint] '{}' does not hold all of '{}' ({}): the file is damaged, or belongs to another checkpoint",
         path_, name, to_string(meta));
  }
  return static_cast<char*>(data_) + entry.begin;
}

}  // namespace shard::checkpoint

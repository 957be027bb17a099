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
  if (good) return;
  const int error = errno;
  ::unlink(path.c_str());  // its room may be what is missing
  errno = error;
  fail_errno("save_checkpoint", "write", path);
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

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status = {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) fail_errno("load_checkpoint", "read", path);
  if (status.st_size == 0) return;
  size = static_cast<uint64_t>(status.st_size);
  void* const begin = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (begin == MAP_FAILED) fail_errno("load_checkpoint", "read", path);
  data = static_cast<char*>(begin);
}

MappedFile::~MappedFile() {
  if (data != nullptr) ::munmap(data, size);
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(path) {
  try {
    read_header();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorCode::invalid_argument, "[load_checkpoint] '{}' is no file of the safetensors format: {}", path,
         error.what());
  }
}

void SafetensorsFile::read_header() {
  uint64_t length = 0;
  const uint64_t prefix = std::min<uint64_t>(file_.size, sizeof(length));
  if (prefix == sizeof(length)) std::memcpy(&length, file_.data, sizeof(length));
  // A header that is longer than the file is cut off, and so no JSON.
  const uint64_t first = prefix + std::min(length, file_.size - prefix);
  const Json header = Json::parse(file_.data + prefix, file_.data + first);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto number = [](const Json& value) {
      return value.is_number_unsigned() ? value.get<uint64_t>() : ~uint64_t{};
    };
    Entry& read = entries_[name];
    read.dtype = entry.at("dtype").get<std::string>();
    for (const Json& size : entry.at("shape")) read.dims.push_back(static_cast<int64_t>(number(size)));
    const uint64_t begin = number(entry.at("data_offsets").at(0)), end = number(entry.at("data_offsets").at(1));
    const uint64_t most = file_.size - first;
    if (begin > end || end > most) read.dims = {-1};  // no tensor has that shape
    else read.begin = first + begin, read.end = first + end;
  }
}

char* SafetensorsFile::elements(const std::string& name, const Meta& meta) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    fail(ErrorCode::invalid_argument, "[load_checkpoint] '{}' has no tensor '{}', which checkpoint.json says it has",
         path_, name);
  }
  const Entry& entry = found->second;
  if (entry.end - entry.begin != meta.bytes() || entry.dtype != format_name(meta.dtype) ||
      !std::equal(entry.dims.begin(), entry.dims.end(), meta.dims.begin(), meta.dims.end())) {
    fail(ErrorCode::invalid_argument,
         "[load_checkpoint] '{}' does not hold all of '{}' ({}): the file is damaged, or belongs to another checkpoint",
         path_, name, to_string(meta));
  }
  return file_.data + entry.begin;
}

}  // namespace shard::checkpoint

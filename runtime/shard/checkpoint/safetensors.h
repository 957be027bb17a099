// Files of the safetensors format: eight bytes with the length of a header of JSON, the header, and the bytes of tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "shard/core/dense_tensor.h"

namespace shard::checkpoint {

/// Throws invalid_argument: "[op] cannot VERB 'path': " and the message of errno.
[[noreturn]] void fail_errno(const char* op, const char* verb, const std::string& path);

/// Writes a file, and waits until it is on the disk. Throws invalid_argument where that fails.
void write_file(const std::string& path, const std::vector<std::pair<const void*, size_t>>& parts);

/// Writes tensors, which are on the host, under their names.
void write_safetensors(const std::string& path, const std::map<std::string, DenseTensor>& tensors);

/// The bytes of a file, which the system loads when they are read.
struct MappedFile {
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  char* data = nullptr;  // null for an empty file
  uint64_t size = 0;
};

/// A file that is read. Throws invalid_argument for what is no such file.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  /// The elements of a tensor, whose begin may be aligned to nothing. Throws invalid_argument unless the file has it with
  /// this shape and dtype.
  char* elements(const std::string& name, const Meta& meta) const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<int64_t> dims;
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
  };
  void read_header();

  const std::string path_;
  const MappedFile file_;
  std::map<std::string, Entry> entries_;
};

}  // namespace shard::checkpoint

// Writing without touching what is already right.
#include "emit/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "read/read_file.h"

namespace shardgen {
namespace {

struct Pending {
  std::string temporary;
  std::string path;
};

bool write_bytes(const std::string& path, const std::string& bytes, std::string& problem) {
  FILE* file = std::fopen(path.c_str(), "wb");
  bool good = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0) {
    if (good) error = errno;
    good = false;
  }
  if (!good) problem = fmt::format("Cannot write '{}': {}.", path, std::strerror(error));
  return good;
}

void remove_all(const std::vector<Pending>& pending) {
  std::error_code ignored;
  for (const Pending& each : pending) std::filesystem::remove(each.temporary, ignored);
}

bool commit(const std::vector<Pending>& pending, std::string& problem) {
  for (const Pending& each : pending) {
    std::error_code error;
    std::filesystem::rename(each.temporary, each.path, error);
    if (!error) continue;
    problem = fmt::format("Cannot replace '{}': {}.", each.path, error.message());
    remove_all(pending);
    return false;
  }
  return true;
}

}  // namespace

std::optional<size_t> write_files(const std::string& directory, const std::map<std::string, std::string>& files, std::string& problem) {
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  if (error) {
    problem = fmt::format("Cannot create folder '{}': {}.", directory, error.message());
    return std::nullopt;
  }
  std::vector<Pending> pending;
  for (const auto& [name, bytes] : files) {
    const std::string path = directory.empty() ? name : directory + "/" + name;
    if (read_bytes(path) == bytes) continue;
    // The process id keeps two runs into one folder from sharing a temporary file.
    pending.push_back({fmt::format("{}.{}.tmp", path, getpid()), path});
    if (write_bytes(pending.back().temporary, bytes, problem)) continue;
    remove_all(pending);
    return std::nullopt;
  }
  if (!commit(pending, problem)) return std::nullopt;
  return pending.size();
}

bool write_file(const std::string& path, const std::string& bytes, std::string& problem) {
  const std::filesystem::path where(path);
  return write_files(where.parent_path().string(), {{where.filename().string(), bytes}}, problem).has_value();
}

}  // namespace shardgen

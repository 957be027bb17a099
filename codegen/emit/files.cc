// Writing without touching what is already right.
#include "emit/files.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "read/read_file.h"

namespace shardgen {
namespace {

constexpr std::string_view kTemporary = ".tmp";

struct Pending {
  std::string temporary;
  std::string path;
};

/// The file that `path` is or leads to, or nothing when that is there and no regular file: a device or a pipe must not be replaced.
std::optional<std::string> regular_target(const std::string& path, std::string& problem) {
  std::error_code error;
  std::filesystem::path target = path;
  for (int links = 0; links < 32 && std::filesystem::is_symlink(std::filesystem::symlink_status(target, error)); ++links)
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return target.string();
  problem = fmt::format("Cannot write '{}': it is {}.", path, std::filesystem::is_directory(status) ? "a folder" : "not a regular file");
  return std::nullopt;
}

/// The process id in "NAME.1234.tmp", which write_files() makes; 0 for other names. `name` becomes NAME.
pid_t writer_of(const std::string& file, std::string& name) {
  if (!file.ends_with(kTemporary)) return 0;
  const size_t end = file.size() - kTemporary.size();
  const size_t dot = file.rfind('.', end - 1);
  if (dot == std::string::npos || dot == 0 || dot + 1 == end) return 0;
  pid_t writer = 0;
  const auto [stop, error] = std::from_chars(file.data() + dot + 1, file.data() + end, writer);
  if (error != std::errc() || stop != file.data() + end) return 0;
  name = file.substr(0, dot);
  return writer;
}

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

void remove_abandoned(const std::string& directory, const std::function<bool(const std::string&)>& is_ours) {
  std::error_code error;
  std::vector<std::filesystem::path> abandoned;
  for (std::filesystem::directory_iterator at(directory.empty() ? "." : directory, error), end; !error && at != end; at.increment(error)) {
    std::string name;
    const pid_t writer = writer_of(at->path().filename().string(), name);
    if (writer > 0 && is_ours(name) && kill(writer, 0) != 0 && errno == ESRCH) abandoned.push_back(at->path());
  }
  for (const std::filesystem::path& path : abandoned) std::filesystem::remove(path, error);
}

std::optional<size_t> write_files(const std::string& directory, const std::map<std::string, std::string>& files, std::string& problem) {
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  if (error) {
    problem = fmt::format("Cannot create folder '{}': {}.", directory, error.message());
    return std::nullopt;
  }
  remove_abandoned(directory, [&](const std::string& name) { return files.contains(name); });
  std::vector<Pending> pending;
  for (const auto& [name, bytes] : files) {
    const std::optional<std::string> path = regular_target(directory.empty() ? name : directory + "/" + name, problem);
    if (!path) {
      remove_all(pending);
      return std::nullopt;
    }
    if (read_bytes(*path) == bytes) continue;
    // The process id keeps two runs into one folder from sharing a temporary file.
    pending.push_back({fmt::format("{}.{}{}", *path, getpid(), kTemporary), *path});
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

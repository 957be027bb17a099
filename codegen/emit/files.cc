// Writes files, and leaves those that are up to date untouched.
#include "emit/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "read/read_file.h"

namespace shardgen {
namespace {

constexpr std::string_view kTemporary = ".tmp";

struct Pending {
  std::string temporary;
  std::string path;
};

/// The file that `path` is or links to. Nothing when it exists and is not a regular file: a device
/// or a pipe must not be replaced.
std::optional<std::string> regular_target(const std::string& path, std::string& problem) {
  std::error_code error;
  std::filesystem::path target = path;
  for (int links = 0; links < 32 && std::filesystem::is_symlink(std::filesystem::symlink_status(target, error));
       ++links)
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) return target.string();
  problem = fmt::format("Cannot write '{}': it is {}.", path,
                        std::filesystem::is_directory(status) ? "a folder" : "not a regular file");
  return std::nullopt;
}

/// NAME of "NAME.1234.tmp", which write_files() makes; empty for other names.
std::string target_of(const std::string& file) {
  if (!file.ends_with(kTemporary)) return "";
  const size_t end = file.size() - kTemporary.size();
  const size_t dot = file.rfind('.', end - 1);
  if (dot == std::string::npos || dot + 1 == end || file.find_first_not_of("0123456789", dot + 1) != end) return "";
  return file.substr(0, dot);
}

/// A lock on a folder, shared by the runs that write into it. Its exclusive owner knows that no
/// temporary file there belongs to a live run. It ends with the process that holds it, and works
/// between containers, where process ids mean nothing.
class FolderLock {
 public:
  explicit FolderLock(const std::string& directory)
      : file_(open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}
  ~FolderLock() {
    if (file_ >= 0) close(file_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  /// False where another run writes, or where the file system has no locks.
  bool try_alone() { return file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0; }
  /// Another run holds it exclusively for a moment only. If it is held longer, the holder is not a
  /// run, and nothing is removed meanwhile.
  void share() {
    for (int tries = 0; tries < 100 && file_ >= 0 && flock(file_, LOCK_SH | LOCK_NB) != 0; ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

 private:
  int file_;
};

/// The folders in the names of files: "python" of "python/math.cc".
std::set<std::string> folders_of(const std::map<std::string, std::string>& files) {
  std::set<std::string> folders;
  for (const auto& [name, bytes] : files) {
    if (const size_t slash = name.rfind('/'); slash != std::string::npos) folders.insert(name.substr(0, slash));
  }
  return folders;
}

void remove_unlocked(const std::string& directory, const std::function<bool(const std::string&)>& is_ours) {
  std::error_code error;
  const std::filesystem::path root = directory.empty() ? "." : directory;
  std::vector<std::filesystem::path> abandoned;
  for (std::filesystem::recursive_directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    if (at.depth() == 1) at.disable_recursion_pending();
    const std::string name = target_of(at->path().lexically_relative(root).generic_string());
    if (!name.empty() && is_ours(name)) abandoned.push_back(at->path());
  }
  for (const std::filesystem::path& path : abandoned) std::filesystem::remove(path, error);
}

/// A number that two runs into one folder do not share, on any machine or container.
uint64_t run_number() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
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
  FolderLock lock(directory);
  if (lock.try_alone()) remove_unlocked(directory, is_ours);
}

std::optional<size_t> write_files(const std::string& directory, const std::map<std::string, std::string>& files,
                                  std::string& problem) {
  std::error_code error;
  if (!directory.empty()) std::filesystem::create_directories(directory, error);
  if (error) {
    problem = fmt::format("Cannot create folder '{}': {}.", directory, error.message());
    return std::nullopt;
  }
  FolderLock lock(directory);
  if (lock.try_alone()) remove_unlocked(directory, [&](const std::string& name) { return files.contains(name); });
  lock.share();
  for (const std::string& folder : folders_of(files)) {
    std::filesystem::create_directories(directory.empty() ? folder : directory + "/" + folder, error);
    if (error) {
      problem = fmt::format("Cannot create folder '{}/{}': {}.", directory, folder, error.message());
      return std::nullopt;
    }
  }
  const uint64_t run = run_number();
  std::vector<Pending> pending;
  for (const auto& [name, bytes] : files) {
    const std::optional<std::string> path = regular_target(directory.empty() ? name : directory + "/" + name, problem);
    if (!path) {
      remove_all(pending);
      return std::nullopt;
    }
    if (read_bytes(*path) == bytes) continue;
    pending.push_back({fmt::format("{}.{}{}", *path, run, kTemporary), *path});
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

// From a path to a family of ops.
#include "read/read_file.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "read/read_op.h"

namespace shardgen {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

/// On failure `problem` is the reason, as the end of a sentence.
std::optional<std::string> read_bytes(const std::string& path, std::string& problem) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    problem = std::strerror(errno);
    return std::nullopt;
  }
  // Opening a pipe would block until its other end is opened; a folder can be opened, but has no
  // bytes.
  if (!S_ISREG(info.st_mode)) {
    problem = S_ISDIR(info.st_mode) ? "it is a folder; name the YAML files in it" : "it is not a regular file";
    return std::nullopt;
  }
  errno = 0;
  const std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  std::string bytes;
  char buffer[1 << 16];
  size_t count = 0;
  // One byte beyond the limit is enough for parse_yaml to refuse the file.
  while (file && bytes.size() <= kMaxFileBytes && (count = std::fread(buffer, 1, sizeof buffer, file.get())) > 0)
    bytes.append(buffer, count);
  if (file && std::ferror(file.get()) == 0) return bytes;
  problem = std::strerror(errno);
  return std::nullopt;
}

std::string family_name(const std::string& path) {
  const std::string base = base_name(path);
  return base.substr(0, base.find_last_of('.'));
}

}  // namespace

std::optional<std::string> read_bytes(const std::string& path) {
  std::string problem;
  return read_bytes(path, problem);
}

std::optional<std::string> read_input(const std::string& path, DiagnosticSink& sink) {
  std::string problem;
  std::optional<std::string> bytes = read_bytes(path, problem);
  if (!bytes) sink.error({path, 0, 0}, "unreadable", fmt::format("The file cannot be read: {}.", problem));
  return bytes;
}

Family read_family(const std::string& path, std::string bytes, DiagnosticSink& sink) {
  Family family{family_name(path), path, {}};
  const std::optional<YamlFile> file = parse_yaml(path, std::move(bytes), sink);
  if (!file) return family;
  const bool list = file->root.kind == YamlNode::Kind::sequence;
  if (file->root.kind == YamlNode::Kind::null || (list && file->root.items.empty())) {
    sink.warning({path, 1, 1}, "empty-file",
                 "The file contains no ops: add one ('- op: name'), or leave the file out.");
    return family;
  }
  if (!list) {
    sink.error(file->at(file->root), "syntax", "The file must be a list of ops ('- op: name').");
    return family;
  }
  const ReadContext context{*file, sink};
  const std::vector<YamlNode>& entries = file->root.items;
  for (size_t i = 0; i < entries.size(); ++i) {
    std::optional<Op> op = read_op(context, entries[i]);
    if (!op) continue;
    op->first_line = entries[i].line;
    op->last_line = i + 1 < entries.size() ? entries[i + 1].line - 1 : std::numeric_limits<int>::max();
    family.ops.push_back(std::move(*op));
  }
  return family;
}

}  // namespace shardgen

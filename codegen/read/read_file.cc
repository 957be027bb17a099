// From a path to a family of ops.
#include "read/read_file.h"

#include <sys/stat.h>

#include <cstdio>
#include <memory>

#include "read/read_op.h"

namespace shardgen {
namespace {

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};

std::string family_name(const std::string& path) {
  const std::string base = base_name(path);
  return base.substr(0, base.find_last_of('.'));
}

}  // namespace

std::optional<std::string> read_bytes(const std::string& path) {
  struct stat info {};
  // A folder can be opened for reading, but has no bytes.
  if (stat(path.c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return std::nullopt;
  const std::unique_ptr<FILE, CloseFile> file(std::fopen(path.c_str(), "rb"));
  if (!file) return std::nullopt;
  std::string bytes;
  char buffer[1 << 16];
  size_t count = 0;
  // One byte beyond the limit is enough for parse_yaml to refuse the file.
  while (bytes.size() <= kMaxFileBytes && (count = std::fread(buffer, 1, sizeof buffer, file.get())) > 0)
    bytes.append(buffer, count);
  if (std::ferror(file.get()) != 0) return std::nullopt;
  return bytes;
}

Family read_family(const std::string& path, std::string bytes, DiagnosticSink& sink) {
  Family family{family_name(path), path, {}};
  const std::optional<YamlFile> file = parse_yaml(path, std::move(bytes), sink);
  if (!file || file->root.kind == YamlNode::Kind::null) return family;
  if (file->root.kind != YamlNode::Kind::sequence) {
    sink.error(file->at(file->root), "syntax", "The file must be a list of ops ('- op: name').");
    return family;
  }
  const ReadContext context{*file, sink};
  for (const YamlNode& entry : file->root.items) {
    if (std::optional<Op> op = read_op(context, entry)) family.ops.push_back(std::move(*op));
  }
  return family;
}

}  // namespace shardgen

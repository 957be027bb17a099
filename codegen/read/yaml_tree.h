// A YAML file as a tree of plain nodes that keep their positions and duplicate keys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diag/diagnostics.h"
#include "model/location.h"

namespace shardgen {

struct YamlEntry;

struct YamlNode {
  enum class Kind { null, scalar, sequence, map };
  Kind kind = Kind::null;
  int line = 0;    // from 1
  int column = 0;  // from 1, in bytes
  bool quoted = false;
  std::string text;                // of a scalar, folded as YAML says
  std::vector<YamlNode> items;     // of a sequence
  std::vector<YamlEntry> entries;  // of a map, in the order of the file
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

/// A file that was read: its bytes and its tree.
struct YamlFile {
  std::string path;
  std::string bytes;
  std::vector<size_t> line_starts;
  YamlNode root;

  Location at(const YamlNode& node) const { return {path, node.line, node.column}; }
  /// The position in the file of byte `offset` of a scalar's text, even when YAML folded several
  /// lines into one.
  Location at(const YamlNode& scalar, size_t offset) const;
};

/// Limits on the input, so that no file can exhaust time or memory.
inline constexpr size_t kMaxFileBytes = size_t{16} << 20;
inline constexpr int kMaxDepth = 64;
inline constexpr size_t kMaxScalarBytes = size_t{64} << 10;
inline constexpr size_t kMaxEntries = 1000;  // of a list or a map within an op
inline constexpr size_t kMaxOps = 10000;     // of a file

/// Parses `bytes`. Reports syntax errors, bytes that are not UTF-8, aliases and excessive depth to
/// `sink`, and then returns nothing.
std::optional<YamlFile> parse_yaml(std::string path, std::string bytes, DiagnosticSink& sink);

}  // namespace shardgen

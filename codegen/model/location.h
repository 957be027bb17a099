// Where a thing stands in a YAML file. Every node of the model carries one, so that each finding can be clicked.
#pragma once

#include <string>

namespace shardgen {

/// A place in a file; line and column count from 1.
struct Location {
  std::string file;
  int line = 0;
  int column = 0;
  bool operator==(const Location&) const = default;
};

/// The file name without its folders: "math.yaml". Generated text must not depend on where the sources lie.
inline std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

/// A word of the input and where it stands.
struct Name {
  std::string text;
  Location at;
};

}  // namespace shardgen

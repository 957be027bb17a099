// Compares what would be generated with the contents of a folder.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace shardgen {

struct StaleFile {
  enum class State { changed, missing, left_over };
  std::string name;
  State state = State::changed;
  std::string before;  // its bytes in the folder
  std::string after;   // its bytes as they would be generated
};

/// "changed", "missing" or "left over"
std::string_view name_of(StaleFile::State state);

/// The files that generating into `directory` would write or remove, by name. The manifest is not
/// included: a comment in the YAML changes it, but nothing that is compiled.
std::vector<StaleFile> find_stale(const std::string& directory, const std::map<std::string, std::string>& files);

}  // namespace shardgen

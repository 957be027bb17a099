// manifest.json records what a run wrote and from what, so that a run with nothing to do can end at
// once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

struct Manifest {
  std::string inputs;                        // hash of the tool's sources, options, templates, runtime and YAML
  std::map<std::string, std::string> files;  // name -> hash of its bytes
};

inline constexpr const char* kManifestName = "manifest.json";

/// A hash of the sources from which the tool was built.
std::string_view tool_identity();

std::string hash_text(uint64_t hash);
std::string to_json(const Manifest& manifest);
/// The manifest in `directory`, or nothing when there is none or it cannot be read.
std::optional<Manifest> read_manifest(const std::string& directory);
/// True when every file that the manifest lists is in `directory` with the recorded hash.
bool is_intact(const Manifest& manifest, const std::string& directory);
/// Removes files that `old` lists and `now` does not, unless they were changed since.
void remove_stale(const Manifest& old, const Manifest& now, const std::string& directory);

}  // namespace shardgen

// Left over are files that the folder's manifest lists and that are no longer generated.
#include "emit/stale.h"

#include <algorithm>

#include "emit/manifest.h"
#include "read/read_file.h"

namespace shardgen {

std::string_view name_of(StaleFile::State state) {
  switch (state) {
    case StaleFile::State::changed: return "changed";
    case StaleFile::State::missing: return "missing";
    case StaleFile::State::left_over: return "left over";
  }
  return "";
}

std::vector<StaleFile> find_stale(const std::string& directory, const std::map<std::string, std::string>& files) {
  using State = StaleFile::State;
  std::vector<StaleFile> stale;
  for (const auto& [name, bytes] : files) {
    std::optional<std::string> old = read_bytes(directory + "/" + name);
    if (old == bytes) continue;
    stale.push_back({name, old ? State::changed : State::missing, old.value_or(""), bytes});
  }
  if (const std::optional<Manifest> manifest = read_manifest(directory)) {
    for (const auto& [name, hash] : manifest->files) {
      std::optional<std::string> old = read_bytes(directory + "/" + name);
      if (old && !files.contains(name)) stale.push_back({name, State::left_over, std::move(*old), ""});
    }
  }
  std::sort(stale.begin(), stale.end(), [](const StaleFile& a, const StaleFile& b) { return a.name < b.name; });
  return stale;
}

}  // namespace shardgen

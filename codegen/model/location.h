// Positions in YAML files. Every node of the model has one, so that each finding is clickable.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace shardgen {

/// A position in a file; line and column count from 1.
struct Location {
  std::string file;
  int line = 0;
  int column = 0;
  bool operator==(const Location&) const = default;
};

/// The file name without its folders: "math.yaml". Generated text must not depend on where the
/// sources are.
inline std::string base_name(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

/// A word of the input and its position.
struct Name {
  std::string text;
  Location at;
};

/// Maps bytes of a text to positions, for a text that YAML folded from one or more lines.
class TextPlaces {
 public:
  /// Byte `offset`, which follows all offsets added before, starts a new line of the file, or the
  /// text.
  void start_line(size_t offset, Location at) { lines_.emplace_back(offset, std::move(at)); }
  bool empty() const { return lines_.empty(); }
  const Location& last() const { return lines_.back().second; }
  Location at(size_t offset) const {
    Location place;
    for (const auto& [start, at] : lines_) {
      if (start > offset) break;
      place = at;
      place.column += static_cast<int>(offset - start);
    }
    return place;
  }

 private:
  std::vector<std::pair<size_t, Location>> lines_;
};

}  // namespace shardgen

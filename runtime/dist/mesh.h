// A grid of processes with named axes: a pure value, interned, without communicators (World has those).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "core/dims.h"

namespace shard {

inline constexpr int kMaxMeshRank = 8;

/// Position of a process in a mesh.
using Coordinate = std::array<int, kMaxMeshRank>;

/// Processes arranged in a grid, row-major. Equal meshes are the same object, so pointers compare.
class ProcessMesh {
 public:
  /// The mesh of this shape. `processes` are world ranks (default 0, 1, ...), `names` those of the axes (default "a", "b",
  /// ...). Throws invalid_argument for a wrong number of ids or names, duplicates, negative ids, or an empty mesh.
  static const ProcessMesh* make(const std::vector<int>& shape, std::vector<int> processes = {},
                                 std::vector<std::string> names = {});

  int rank() const { return static_cast<int>(shape_.size()); }
  /// The number of processes along an axis, or in all.
  int size(int axis) const { return shape_[static_cast<size_t>(axis)]; }
  int size() const { return static_cast<int>(processes_.size()); }
  const std::vector<int>& processes() const { return processes_; }
  const std::string& name(int axis) const { return names_[static_cast<size_t>(axis)]; }
  /// Throws out_of_range naming the axes that exist.
  int axis(std::string_view name) const;

  /// Where `process` stands; nothing when it is not in the mesh.
  std::optional<Coordinate> coordinate(int process) const;
  /// The coordinate of the i-th process.
  Coordinate coordinate_at(int index) const;
  /// The processes that differ from `at` only along `axis`, in order.
  std::vector<int> line(const Coordinate& at, int axis) const;
  int process_at(const Coordinate& at) const;

  /// "mesh(dp=2, tp=2)", with the process ids where they are not 0, 1, ...
  std::string describe() const;

 private:
  ProcessMesh(std::vector<int> shape, std::vector<int> processes, std::vector<std::string> names)
      : shape_(std::move(shape)), processes_(std::move(processes)), names_(std::move(names)) {}

  std::vector<int> shape_;
  std::vector<int> processes_;
  std::vector<std::string> names_;
};

}  // namespace shard

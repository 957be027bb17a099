// A grid of processes with named axes: a pure, interned value without communicators (World has
// those).
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "shard/core/dims.h"
#include "shard/core/export.h"

namespace shard {

inline constexpr int kMaxMeshRank = 8;

/// Position of a process in a mesh.
using Coordinate = std::array<int, kMaxMeshRank>;

/// The cost of a collective along one mesh axis in the planner's model: a start-up time, and a time
/// per byte that a rank receives.
struct AxisCost {
  double alpha_ns = 5000;
  double ns_per_byte = 0.1;
  bool operator==(const AxisCost&) const = default;
};

/// The constants of the planner's model. They belong to the mesh value, so that every rank decides
/// alike.
struct MeshCosts {
  std::vector<AxisCost> axes = {};  // one per axis; empty: the defaults
  double copy_ns_per_byte = 0.05;   // of writing a local shard in local memory
  int64_t memory_cap = 0;           // bytes that a reshard may take on one rank; 0: no cap
  bool operator==(const MeshCosts&) const = default;
};

/// Processes arranged in a grid, row-major. Equal meshes are the same object, so pointers can be
/// compared.
class SHARD_API ProcessMesh {
 public:
  /// The mesh of this shape. `processes` are world ranks (default 0, 1, ...), `names` those of the
  /// axes (default "a", "b", ...), `costs` is part of the value. Throws invalid_argument for a
  /// wrong number of ids, names or costs, for duplicates, for negative ids or costs, and for an
  /// empty mesh.
  static const ProcessMesh* make(const std::vector<int>& shape, std::vector<int> processes = {},
                                 std::vector<std::string> names = {}, MeshCosts costs = {});

  int rank() const { return static_cast<int>(shape_.size()); }
  /// The number of processes along an axis, or in total.
  int size(int axis) const { return shape_[static_cast<size_t>(axis)]; }
  int size() const { return static_cast<int>(processes_.size()); }
  const std::vector<int>& processes() const { return processes_; }
  const std::string& name(int axis) const { return names_[static_cast<size_t>(axis)]; }
  const AxisCost& cost(int axis) const { return costs_.axes[static_cast<size_t>(axis)]; }
  const MeshCosts& costs() const { return costs_; }
  /// The index of the axis. Throws out_of_range, naming the axes that exist.
  int axis(std::string_view name) const;

  /// The coordinate of `process`; nothing when it is not in the mesh.
  std::optional<Coordinate> coordinate(int process) const;
  /// The coordinate of the i-th process.
  Coordinate coordinate_at(int index) const;
  /// The processes that differ from `at` only along `axis`, in order.
  std::vector<int> line(const Coordinate& at, int axis) const;
  int process_at(const Coordinate& at) const;

  /// "mesh(dp=2, tp=2)", with the process ids unless they are 0, 1, ..., and the costs unless they
  /// are the defaults.
  std::string describe() const;

 private:
  ProcessMesh(std::vector<int> shape, std::vector<int> processes, std::vector<std::string> names, MeshCosts costs)
      : shape_(std::move(shape)), processes_(std::move(processes)), names_(std::move(names)), costs_(std::move(costs)) {
  }

  std::vector<int> shape_;
  std::vector<int> processes_;
  std::vector<std::string> names_;
  MeshCosts costs_;
};

}  // namespace shard

#include "shard/dist/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>

namespace shard {
namespace {

/// A mesh stores a list of its processes, so a larger mesh would not fit into memory.
constexpr int64_t kMaxProcesses = int64_t{1} << 24;

/// The number of processes. Throws invalid_argument for an invalid shape.
int64_t check_shape(const std::vector<int>& shape) {
  if (shape.empty()) fail(ErrorCode::invalid_argument, "a mesh needs at least one axis");
  if (shape.size() > kMaxMeshRank) fail(ErrorCode::invalid_argument, "a mesh has at most {} axes", kMaxMeshRank);
  int64_t size = 1;
  for (int n : shape) {
    if (n < 1)
      fail(ErrorCode::invalid_argument, "mesh shape [{}] has an axis of size {}, which must be at least 1",
           fmt::join(shape, ", "), n);
    if (size <= kMaxProcesses) size *= n;  // below 2^55
  }
  if (size > kMaxProcesses) {
    fail(ErrorCode::invalid_argument, "mesh shape [{}] has more than {} processes, the maximum; make an axis smaller",
         fmt::join(shape, ", "), kMaxProcesses);
  }
  return size;
}

void check(const std::vector<int>& shape, int64_t size, const std::vector<int>& processes,
           const std::vector<std::string>& names) {
  if (size != static_cast<int64_t>(processes.size())) {
    fail(ErrorCode::invalid_argument, "mesh shape [{}] needs {} process ids, but {} were given", fmt::join(shape, ", "),
         size, processes.size());
  }
  if (names.size() != shape.size()) {
    fail(ErrorCode::invalid_argument, "mesh shape [{}] needs {} axis names, but {} were given", fmt::join(shape, ", "),
         shape.size(), names.size());
  }
  for (const std::string& name : names) {
    const auto allowed = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
    if (name.empty() || !std::all_of(name.begin(), name.end(), allowed)) {
      fail(ErrorCode::invalid_argument,
           "mesh axis name '{}' must be letters, digits and _, as layouts are written with it", name);
    }
  }
  const auto duplicate = [](auto values) {
    std::sort(values.begin(), values.end());
    return std::adjacent_find(values.begin(), values.end()) != values.end();
  };
  if (duplicate(processes))
    fail(ErrorCode::invalid_argument, "mesh process ids [{}] name a process twice", fmt::join(processes, ", "));
  if (duplicate(names))
    fail(ErrorCode::invalid_argument, "mesh axis names [{}] name an axis twice", fmt::join(names, ", "));
  if (*std::min_element(processes.begin(), processes.end()) < 0) {
    fail(ErrorCode::invalid_argument, "mesh process ids [{}] must not be negative", fmt::join(processes, ", "));
  }
}

void check(const std::vector<int>& shape, const MeshCosts& costs) {
  if (costs.axes.size() != shape.size()) {
    fail(ErrorCode::invalid_argument, "mesh shape [{}] needs {} axis costs, but {} were given", fmt::join(shape, ", "),
         shape.size(), costs.axes.size());
  }
  bool valid = std::isfinite(costs.copy_ns_per_byte) && costs.copy_ns_per_byte >= 0 && costs.memory_cap >= 0;
  for (const AxisCost& axis : costs.axes) {
    valid = valid && std::isfinite(axis.alpha_ns) && std::isfinite(axis.ns_per_byte) && axis.alpha_ns >= 0 &&
            axis.ns_per_byte >= 0;
  }
  if (!valid)
    fail(ErrorCode::invalid_argument, "the costs of mesh shape [{}] must be finite and not negative",
         fmt::join(shape, ", "));
}

/// A text that distinguishes meshes of one shape by their costs; empty for the defaults.
std::string describe_costs(const MeshCosts& costs) {
  const MeshCosts defaults;
  std::string text;
  if (std::any_of(costs.axes.begin(), costs.axes.end(), [](const AxisCost& axis) { return axis != AxisCost(); })) {
    for (const AxisCost& axis : costs.axes)
      text += fmt::format("{}{} ns + {} ns/B", text.empty() ? "; costs " : ", ", axis.alpha_ns, axis.ns_per_byte);
  }
  if (costs.copy_ns_per_byte != defaults.copy_ns_per_byte)
    text += fmt::format("; copies {} ns/B", costs.copy_ns_per_byte);
  if (costs.memory_cap != 0) text += fmt::format("; memory cap {} B", costs.memory_cap);
  return text;
}

}  // namespace

const ProcessMesh* ProcessMesh::make(const std::vector<int>& shape, std::vector<int> processes,
                                     std::vector<std::string> names, MeshCosts costs) {
  const int64_t size = check_shape(shape);
  if (processes.empty()) {
    processes.resize(static_cast<size_t>(size));
    std::iota(processes.begin(), processes.end(), 0);
  }
  if (names.empty()) {
    for (size_t i = 0; i < shape.size(); ++i) names.emplace_back(1, static_cast<char>('a' + i));
  }
  check(shape, size, processes, names);
  if (costs.axes.empty()) costs.axes.resize(shape.size());
  check(shape, costs);

  std::vector<double> constants{costs.copy_ns_per_byte, static_cast<double>(costs.memory_cap)};
  for (const AxisCost& axis : costs.axes) constants.insert(constants.end(), {axis.alpha_ns, axis.ns_per_byte});
  using Key = std::tuple<std::vector<int>, std::vector<int>, std::vector<std::string>, std::vector<double>>;
  static std::mutex mutex;
  static std::map<Key, std::unique_ptr<const ProcessMesh>> table;
  const std::lock_guard lock(mutex);
  std::unique_ptr<const ProcessMesh>& mesh = table[Key(shape, processes, names, constants)];
  if (!mesh) mesh.reset(new ProcessMesh(shape, std::move(processes), std::move(names), std::move(costs)));
  return mesh.get();
}

int ProcessMesh::axis(std::string_view name) const {
  for (int i = 0; i < rank(); ++i) {
    if (names_[static_cast<size_t>(i)] == name) return i;
  }
  fail(ErrorCode::out_of_range, "{} has no axis '{}'; its axes are: {}", describe(), name, fmt::join(names_, ", "));
}

std::optional<Coordinate> ProcessMesh::coordinate(int process) const {
  const auto found = std::find(processes_.begin(), processes_.end(), process);
  if (found == processes_.end()) return std::nullopt;
  return coordinate_at(static_cast<int>(found - processes_.begin()));
}

Coordinate ProcessMesh::coordinate_at(int index) const {
  Coordinate at{};
  for (int i = rank() - 1; i >= 0; --i) {
    at[static_cast<size_t>(i)] = index % size(i);
    index /= size(i);
  }
  return at;
}

int ProcessMesh::process_at(const Coordinate& at) const {
  int index = 0;
  for (int i = 0; i < rank(); ++i) index = index * size(i) + at[static_cast<size_t>(i)];
  return processes_[static_cast<size_t>(index)];
}

std::vector<int> ProcessMesh::line(const Coordinate& at, int axis) const {
  std::vector<int> members;
  Coordinate walker = at;
  for (int i = 0; i < size(axis); ++i) {
    walker[static_cast<size_t>(axis)] = i;
    members.push_back(process_at(walker));
  }
  return members;
}

std::string ProcessMesh::describe() const {
  std::string text = "mesh(";
  for (int i = 0; i < rank(); ++i) text += fmt::format("{}{}={}", i == 0 ? "" : ", ", name(i), size(i));
  bool plain = true;
  for (int i = 0; i < size(); ++i) plain = plain && processes_[static_cast<size_t>(i)] == i;
  if (!plain) text += fmt::format("; processes {}", fmt::join(processes_, ","));
  return text + describe_costs(costs_) + ")";
}

}  // namespace shard

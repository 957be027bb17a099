// Meshes, placements and layouts as Python has them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "services.h"

namespace shard::python {

/// A mesh. The library owns all of them.
struct Mesh {
  const ProcessMesh* mesh;
};

/// What one mesh dim does with a tensor: it shards a dim, or leaves the value pending, or neither.
struct Placement {
  enum class Kind : uint8_t { shard, replicate, partial };
  Kind kind = Kind::replicate;
  int dim = 0;
  ReduceType type = ReduceType::sum;
  bool operator==(const Placement&) const = default;
};

std::string to_text(const Placement& placement);

/// Placements on a mesh, one for each of its dims. `spec` is there where the number of dims is known.
struct PlacedLayout {
  const ProcessMesh* mesh = nullptr;
  std::vector<Placement> placements;
  const DistSpec* spec = nullptr;
};

/// The placements of a layout. They lack the order of several mesh dims that shard one dim.
std::vector<Placement> placements_of(const DistSpec& spec);
/// The layout of a tensor with `rank` dims. Throws layout.
const DistSpec* resolve(const PlacedLayout& layout, int rank);
/// Reads `mesh, placements`: placements may be a text or, with a Layout as `mesh`, None. Throws TypeError that begins with `function`.
PlacedLayout placed_layout(nb::handle mesh, nb::handle placements, const char* function, int rank = -1);
/// The mesh of a Python object. Throws TypeError.
const ProcessMesh* mesh_of(nb::handle object, const char* function);
/// A function is a method of tensors, too.
nb::tuple tuple_of(const std::vector<int>& values);
nb::tuple tuple_of(const Dims& dims);
Dims dims_of(const std::vector<int64_t>& values);
[[noreturn]] void fail_argument(const char* function, const char* argument, const char* accepts, nb::handle object);

void register_meshes(nb::module_& module);
void register_placements(nb::module_& module);
void register_resharding(nb::module_& module);
void register_local_map(nb::module_& module);

}  // namespace shard::python

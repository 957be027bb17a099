// Helpers for tests with small float64 tensors, plain ones and those on a mesh of two rows and two
// columns.
#pragma once

#include "shard/shard.h"
#include "support/mesh_run.h"

namespace shard::test {

using Tensors = std::vector<Tensor>;
using Values = std::vector<double>;

inline Tensor vec(const Values& values) { return Tensor::from_data(values, {static_cast<int64_t>(values.size())}); }
inline Tensor leaf(const Values& values) { return vec(values).set_requires_grad(true); }
inline Values values(const Tensor& x) { return x.to_vector<double>(); }
inline Tensor total(const Tensor& x) { return sum(x, {}, false); }

inline const ProcessMesh* mesh22(MeshCosts costs = {}) {
  return ProcessMesh::make({2, 2}, {}, {"a", "b"}, std::move(costs));
}
/// A tensor of the numbers starting at `start`. Collective.
inline Tensor on(const char* layout, const Dims& dims, double start = 0, const ProcessMesh* mesh = mesh22()) {
  return distribute(iota<double>(dims, start), DistSpec::parse(mesh, layout));
}
/// All elements; empty on a rank outside the mesh. Collective.
inline Values whole(const Tensor& x) {
  const Tensor all = x.is_dist() ? full_tensor(x) : x;
  return all.defined() ? values(all) : Values();
}

}  // namespace shard::test

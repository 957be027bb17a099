// What the tests of reshapes share: random shapes and layouts, all layouts of a shape, and which elements a process holds.
#pragma once

#include <functional>
#include <random>

#include "shard/ops/shape_ops.h"
#include "spmd/rule_case.h"

namespace shard::test {

inline Inferred infer_reshape(const ProcessMesh* mesh, const Dims& in, const std::string& layout, const Dims& out) {
  return run({ops::reshape, {{in, layout.c_str()}}, {IntArray(out)}, {out}, "", {}, {}, mesh});
}

/// The row-major indices that a process holds, in the order in which it holds them.
inline std::vector<int64_t> held(const Layout& layout, const Dims& dims, const Coordinate& at) {
  const ShardBox shard = shard_box(layout, dims, at);
  std::vector<int64_t> indices = {0};
  for (int d = 0; d < dims.rank(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t index : indices) {
      for (int64_t k = 0; k < shard.dims[d]; ++k) next.push_back(index * dims[d] + shard.begin[d] + k);
    }
    indices = std::move(next);
  }
  return indices;
}

inline bool same_elements(const Layout& in, const Dims& in_dims, const Layout& out, const Dims& out_dims) {
  for (int p = 0; p < in.mesh->size(); ++p) {
    const Coordinate at = in.mesh->coordinate_at(p);
    if (held(in, in_dims, at) != held(out, out_dims, at)) return false;
  }
  return true;
}

/// Every way to shard with each axis at most once.
inline void for_all_layouts(const ProcessMesh* mesh, int rank, const std::function<void(const Layout&)>& visit) {
  const std::function<void(const Layout&, int)> next = [&](const Layout& layout, int axis) {
    if (axis == mesh->rank()) return visit(layout);
    next(layout, axis + 1);
    for (size_t d = 0; d < static_cast<size_t>(rank); ++d) {
      for (int at = 0; at <= layout.dims[d].size(); ++at) {
        Layout with = layout;
        with.dims[d] = {};
        for (int k = 0; k <= layout.dims[d].size(); ++k) {
          if (k == at) with.dims[d].push_back(axis);
          if (k < layout.dims[d].size()) with.dims[d].push_back(layout.dims[d][k]);
        }
        next(with, axis + 1);
      }
    }
  };
  next(Layout(mesh, rank), 0);
}

inline Dims random_shape(std::mt19937& random, int64_t numel) {
  std::vector<int64_t> dims;
  while (numel > 1) {
    std::vector<int64_t> divisors;
    for (int64_t n = 2; n <= numel; ++n) {
      if (numel % n == 0) divisors.push_back(n);
    }
    dims.push_back(divisors[random() % divisors.size()]);
    numel /= dims.back();
  }
  for (int ones = static_cast<int>(random() % 3); ones > 0 && dims.size() < 4; --ones)
    dims.insert(dims.begin() + static_cast<long>(random() % (dims.size() + 1)), 1);
  Dims result;
  for (const int64_t n : dims) result.push_back(n);
  return result;
}

/// Some axes of the mesh on random dims.
inline Layout random_layout(std::mt19937& random, const ProcessMesh* mesh, int rank) {
  Layout layout(mesh, rank);
  for (int axis = 0; axis < mesh->rank() && rank > 0; ++axis) {
    if (random() % 4 != 0) layout.dims[random() % static_cast<size_t>(rank)].push_back(axis);
  }
  return layout;
}

}  // namespace shard::test

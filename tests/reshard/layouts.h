// Every layout of small tensors, for exhaustive tests.
#pragma once

#include "shard/dist/spec.h"

namespace shard::test {

/// All layouts of a tensor with `rank` dims on `mesh`: each axis replicated, pending with one of `types`, or at any
/// position in the list of any dim.
inline std::vector<const DistSpec*> all_layouts(const ProcessMesh* mesh, int rank,
                                                std::initializer_list<ReduceType> types) {
  std::vector<Layout> layouts{Layout(mesh, rank)};
  for (int axis = 0; axis < mesh->rank(); ++axis) {
    std::vector<Layout> next;
    for (const Layout& layout : layouts) {
      next.push_back(layout);
      for (ReduceType type : types) {
        next.push_back(layout);
        next.back().partial[static_cast<size_t>(axis)] = type;
      }
      for (int d = 0; d < rank; ++d) {
        const AxisList& axes = layout.dims[static_cast<size_t>(d)];
        for (int at = 0; at <= axes.size(); ++at) {
          next.push_back(layout);
          AxisList& with = next.back().dims[static_cast<size_t>(d)];
          with = {};
          for (int i = 0; i < axes.size(); ++i) {
            if (i == at) with.push_back(axis);
            with.push_back(axes[i]);
          }
          if (at == axes.size()) with.push_back(axis);
        }
      }
    }
    layouts = next;
  }
  std::vector<const DistSpec*> specs;
  for (const Layout& layout : layouts) specs.push_back(DistSpec::make(layout));
  return specs;
}

}  // namespace shard::test

// The placement of gradients as in docs/rules.md: the layouts that a gradient may have, given the layout of its
// tensor.
#pragma once

#include <string>

#include "shard/dist/spec.h"

namespace shard::test {

/// Nothing when a tensor in `forward` may get a gradient in `gradient`: along each mesh axis
/// - a replicated one a replicated one or a pending sum,
/// - a sharded one one with the same shards or a pending sum,
/// - one that is pending a replicated one.
inline std::string placement_problem(const DistSpec* forward, const DistSpec* gradient) {
  Layout allowed = forward->layout();
  for (int axis = 0; axis < forward->mesh()->rank(); ++axis) {
    const bool was_pending = allowed.partial[static_cast<size_t>(axis)].has_value();
    allowed.partial[static_cast<size_t>(axis)].reset();
    if (was_pending || gradient->partial(axis) != ReduceType::sum) continue;
    allowed.partial[static_cast<size_t>(axis)] = ReduceType::sum;
    for (int d = 0; d < allowed.rank; ++d) {
      AxisList others;
      const AxisList& axes = forward->axes(d);
      for (int i = 0; i < axes.size(); ++i) {
        if (gradient->partial(axes[i]) != ReduceType::sum) others.push_back(axes[i]);
      }
      allowed.dims[static_cast<size_t>(d)] = others;
    }
  }
  if (gradient->layout() == allowed) return "";
  return "a gradient of " + forward->text() + " is in " + gradient->text();
}

}  // namespace shard::test

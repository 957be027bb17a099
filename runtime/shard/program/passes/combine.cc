#include "shard/program/passes/combine.h"

#include <fmt/format.h>

#include <algorithm>

namespace shard::program {

std::string combine_key(const ReshardPlan& plan) {
  const MeshCosts& costs = plan.from->mesh()->costs();
  double start = 0, packing = 0;
  std::string key = fmt::format("{}", static_cast<int>(plan.meta.dtype));
  for (const ReshardStep& step : plan.steps) {
    if (step.bytes != 0) {
      double longest = 0;
      for (int axis = 0; axis < step.group->rank(); ++axis) {
        if (step.group_axis() < 0 || step.group_axis() == axis)
          longest = std::max(longest, step.group->cost(axis).alpha_ns);
      }
      start += longest;
      // Packed before the collective, and unpacked after it.
      packing += 2 * static_cast<double>(step.bytes_max) * costs.copy_ns_per_byte;
    }
    key += fmt::format(" {} {} {} {} {}", static_cast<int>(step.kind), static_cast<int>(step.type),
                       static_cast<const void*>(step.group), static_cast<const void*>(step.before.mesh),
                       static_cast<const void*>(step.after.mesh));
    key += fmt::format(" {} {}", static_cast<int>(step.dtype), static_cast<int>(step.after_dtype));
    for (int i = 0; i < step.axes.size(); ++i) key += fmt::format(",{}", step.axes[i]);
  }
  return packing < start ? key : "";
}

}  // namespace shard::program

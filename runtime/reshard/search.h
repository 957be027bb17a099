// The planner's search over the layouts of one mesh. What its steps cost stands here too; how they are counted exactly, in count.h.
#pragma once

#include <vector>

#include "reshard/plan.h"

namespace shard {

/// The layout with the axes of one process left out: they change no piece and no value.
Layout without_unit_axes(const Layout& layout);

/// Appends the steps of least predicted time between two layouts of one mesh (without axes of one process), each with kind, axes, type,
/// layouts and ns; false when no plan keeps every step's peak within `cap` bytes. No cap: 0.
bool search_steps(const Meta& meta, const Layout& from, const Layout& to, int64_t cap, SumPolicy sums,
                  std::vector<ReshardStep>& steps);

/// The smallest peak of any plan, in bytes on the fullest rank.
int64_t least_peak(const Meta& meta, const Layout& from, const Layout& to, SumPolicy sums);

/// Predicted time of one step that sends nothing and writes `bytes`.
double local_ns(const ProcessMesh& mesh, double bytes);

}  // namespace shard

// The planner's search over the layouts of one mesh. The costs of its steps are here too; boxes.h
// counts bytes exactly.
#pragma once

#include <vector>

#include "shard/reshard/plan.h"

namespace shard {

/// The layout without the axes of size 1, which change no shard and no value.
Layout without_unit_axes(const Layout& layout);

/// Appends the steps of least predicted time between two layouts of one mesh (without axes of size
/// 1), each with kind, axes, type, layouts and ns. False when no plan keeps every step's peak
/// within `cap` bytes; 0 is no cap.
bool search_steps(const Meta& meta, const Layout& from, const Layout& to, int64_t cap, SumPolicy sums,
                  std::vector<ReshardStep>& steps);

/// The smallest peak of any plan, in bytes on the fullest rank.
int64_t least_peak(const Meta& meta, const Layout& from, const Layout& to, SumPolicy sums);

/// Predicted time of a step that sends nothing and writes `bytes`.
double local_ns(const ProcessMesh& mesh, double bytes);

}  // namespace shard

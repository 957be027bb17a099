// Names the step between two layouts of one mesh.
#pragma once

#include "shard/reshard/plan.h"

namespace shard {

/// The kind and the axes of the step from one layout to another on one mesh; pending reductions do
/// not change.
ReshardStep::Kind kind_of_move(const Layout& from, const Layout& to, AxisList& axes);

}  // namespace shard

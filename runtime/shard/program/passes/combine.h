// Collective combining: finds reshards that can share their collectives.
#pragma once

#include <string>

#include "shard/reshard/plan.h"

namespace shard::program {

/// A key that is equal for reshards that can share the collective of each step. Empty for a reshard
/// that gains nothing by that: it has no collectives, or packing its boxes takes longer than
/// starting collectives of its own.
std::string combine_key(const ReshardPlan& plan);

}  // namespace shard::program

// Moves that share their collectives.
#pragma once

#include <string>

#include "reshard/plan.h"

namespace shard::program {

/// Equal for moves that can share each step's collective. Empty for one that gains nothing by that: packing its pieces takes longer than starting
/// collectives of its own, or it has none.
std::string batch_key(const ReshardPlan& plan);

}  // namespace shard::program

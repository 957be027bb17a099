// Whether an axis expression fits an op: as many terms as tensors, lists in brackets, attributes that exist and have the right types.
#pragma once

#include <vector>

#include "model/op.h"

namespace shardgen {

/// What does not fit, in the order of the text; empty when all does.
std::vector<AxisProblem> misfits(const AxisExpr& expr, const Op& op);

}  // namespace shardgen

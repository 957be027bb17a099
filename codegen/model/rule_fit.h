// Checks that an axis expression fits an op: as many terms as tensors, lists in brackets,
// attributes that exist and have the right types.
#pragma once

#include <vector>

#include "model/op.h"

namespace shardgen {

/// The mismatches, in the order of the text; empty when the expression fits.
std::vector<AxisProblem> find_mismatches(const AxisExpr& expr, const Op& op);

}  // namespace shardgen

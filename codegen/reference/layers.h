// The steps of the three layers of a generated op, for human readers.
#pragma once

#include <vector>

#include "lower/template_data.h"
#include "reference/facts.h"

namespace shardgen {

/// The declarations of the public functions of a generated op, with their default arguments.
std::vector<std::string> declarations_of(const LowerContext& context, const Op& op);
/// The public, dense and distributed functions of a generated op, each with its steps.
std::vector<LayerFact> layers_of(const LowerContext& context, const Op& op);

}  // namespace shardgen

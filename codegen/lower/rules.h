// The placement rules that the generated tables hold: those of the YAML, and those of backward ops that follow from the forward op's.
#pragma once

#include <optional>
#include <string>

#include "lower/support.h"

namespace shardgen {

/// The rule of an op: its own, else for a backward op the one that follows from its forward op's expression; nothing where it has
/// neither. None follows where an argument or output of it is neither a tensor of the forward op nor a gradient of one.
std::optional<std::string> rule_of(const Selection& selection, const Op& op);
/// How an op commutes with reductions, by `shard: partial` or by the mark of its expression, derived or not.
std::optional<Partial> commutation_of(const Selection& selection, const Op& op);

}  // namespace shardgen

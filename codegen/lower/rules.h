// The placement rules in the generated tables: those of the YAML, and those of backward ops that
// are derived from the forward op.
#pragma once

#include <optional>
#include <string>

#include "lower/support.h"

namespace shardgen {

/// The rule of an op: its own, else for a backward op the one derived from its forward op's
/// expression, else nothing. No rule is derived where an argument or output is neither a tensor of
/// the forward op nor a gradient of one.
std::optional<std::string> rule_of(const Selection& selection, const Op& op);
/// How an op commutes with reductions, by `shard: partial` or by the commutation in its expression,
/// derived or not.
std::optional<Partial> commutation_of(const Selection& selection, const Op& op);

}  // namespace shardgen

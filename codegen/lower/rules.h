// The placement rules that the generated tables hold: those of the YAML, and those of backward ops that follow from the forward op's.
#pragma once

#include <optional>
#include <string>

#include "lower/support.h"

namespace shardgen {

/// The rule of `backward` that follows from the expression of `forward`; nothing where that has none, or where an argument or output
/// of `backward` is neither a tensor of `forward` nor a gradient of one.
std::optional<std::string> derived_rule(const Op& backward, const Op& forward);
/// The rule of an op: its own, else for a backward op the derived one; nothing where it has neither.
std::optional<std::string> rule_of(const Selection& selection, const Op& op);
/// How an op commutes with reductions, by `shard: partial` or by the mark of its expression, derived or not.
std::optional<Partial> commutation_of(const Selection& selection, const Op& op);

}  // namespace shardgen

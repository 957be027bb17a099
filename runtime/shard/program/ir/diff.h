// Textual differences between two programs.
#pragma once

#include <string>

#include "shard/core/export.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// One line for each op, input, parameter, output and effect that only `a` has (-) or only `b` has
/// (+). Empty if the programs are equal except for the numbers of their values. Values that both
/// have are numbered in the order of `a`; values that only `b` has are called %b1, %b2, ...
SHARD_API std::string diff(const Program& a, const Program& b);

}  // namespace shard::program

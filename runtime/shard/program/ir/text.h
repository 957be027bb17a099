// Parts of the text of a program, with names of values that the caller chooses.
#pragma once

#include <functional>
#include <string>

#include "shard/program/ir/program.h"

namespace shard::program {

using ValueNames = std::function<std::string(ValueId)>;

/// A value: "%3", "none".
std::string number_of(ValueId id);
/// An operand: "%4@%7".
std::string operand_text(const Operand& operand, const ValueNames& name);
/// A value with its type and source: "%3: f64[2, 1] in %2".
std::string value_text(const Program& program, ValueId id, const ValueNames& name);
/// An op: "%5: f32[4, 8] [dp, -] = add(x: %3, y: %4@%7)".
std::string op_text(const Program& program, const Op& op, const ValueNames& name);

}  // namespace shard::program

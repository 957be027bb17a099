// Constants of op YAML: default values of attributes and arguments of invoked functions.
#pragma once

#include <optional>

#include "model/op.h"
#include "read/cursor.h"

namespace shardgen {

/// Reads a constant of op YAML: 0.5f, INT64_MAX, true, "x", DataType::FLOAT32, CPUPlace(), {1, 2}.
/// Reports text that is not a constant.
std::optional<Literal> read_literal(Cursor& cursor);
/// The value of a numeric C++ expression, as in "(2 << 12) - 1" or "1.0f/8", or nothing.
std::optional<Literal> evaluate_number(std::string_view text);

}  // namespace shardgen

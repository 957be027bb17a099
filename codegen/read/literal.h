// Constants of op YAML: default values of attributes and arguments of invoked functions.
#pragma once

#include <optional>

#include "model/op.h"
#include "read/cursor.h"

namespace shardgen {

/// Reads a constant as the YAML writes it: 0.5f, INT64_MAX, true, "x", DataType::FLOAT32, CPUPlace(), {1, 2}. Reports what
/// is none.
std::optional<Literal> read_literal(Cursor& cursor);

}  // namespace shardgen

// Argument lists and output lists: "(Tensor x, int axis=-1)" and "Tensor(out), Tensor[](parts){n}".
#pragma once

#include <optional>

#include "model/op.h"
#include "read/cursor.h"

namespace shardgen {

/// Reads "(Tensor x, ...)" into inputs, attrs and args, up to the first argument that is wrong.
void read_args(Cursor& cursor, Signature& signature);
/// Reads the outputs up to the end.
void read_outputs(Cursor& cursor, Signature& signature);
/// Reads "name(args) -> outputs".
std::optional<Forward> read_forward(Cursor& cursor);

}  // namespace shardgen

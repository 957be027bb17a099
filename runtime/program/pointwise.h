// Ops that may run on some rows of their arguments at a time.
#pragma once

#include "core/op_def.h"

namespace shard::program {

/// Says that `op` computes each element of its only output from the elements in its place alone (after broadcasting), whatever the shapes are and
/// wherever that place is: not so a triangle, which looks at the place, or a number of classes, which is the size of a dim. Elementwise rules do
/// not tell. The ops of the library are known. Thread safe; `op` lives as long as the library.
void mark_pointwise(const OpDef& op);
bool is_pointwise(const OpDef& op);

}  // namespace shard::program

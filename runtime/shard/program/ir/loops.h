// Which ops may run as one loop.
#pragma once

#include "shard/kernels/cpu/epilogue.h"
#include "shard/program/ir/op_table.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// True if the op may be part of a loop over blocks of elements.
inline bool is_looped(const Op& op) { return op.kind == Kind::call && op.entry->op->pointwise; }
/// True if the op's kernel may take the loop of the ops that follow it as its epilogue.
inline bool leads_loop(const Op& op) { return op.kind == Kind::call && cpu::takes_epilogue(op.entry->op->name); }
/// True if a loop with the op may gain by being an epilogue: it waits for memory. Functions take so long that memory does
/// not matter.
inline bool is_arithmetic(const Op& op) { return op.kind == Kind::call && op.entry->op->exact; }

}  // namespace shard::program

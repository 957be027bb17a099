#include <algorithm>

#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// The type that determines the length of a loop over this op; null if the op cannot be part of a
/// loop.
const Type* looped(const Program& program, const Op& op) {
  if (op.kind != Kind::call || !op.entry->op->pointwise || op.outputs.size() != 1 || op.outputs[0] == 0) return nullptr;
  const Type& out = program.value(op.outputs[0]).type;
  return out.device == kCpu ? &out : nullptr;
}

bool as_long(const Type& a, const Type& b) {
  return a.spec == b.spec &&
         (a.spec == nullptr ? a.meta.dims.numel() == b.meta.dims.numel() : a.meta.dims == b.meta.dims);
}

}  // namespace

Program fuse_loops(const Program& program) {
  Program result;
  Rewriter copy(program, result);
  copy.enter_all();
  const Type* before = nullptr;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Type* const type = looped(program, program.ops[i]);
    copy.copy(i);
    result.ops.back().joins = program.ops[i].joins || (type != nullptr && before != nullptr && as_long(*type, *before));
    before = type;
  }
  copy.leave_all();
  return result;
}

}  // namespace shard::program

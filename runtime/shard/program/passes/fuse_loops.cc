#include <algorithm>

#include "shard/call/fused_loop.h"
#include "shard/program/ir/loops.h"
#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// The type that determines the length of a loop over this op, or after it; null if there is none.
const Type* looped(const Program& program, const Op& op) {
  if ((!is_looped(op) && !leads_loop(op)) || op.outputs.size() != 1 || op.outputs[0] == 0) return nullptr;
  const Type& out = program.value(op.outputs[0]).type;
  const bool loops = out.device == kCpu || (is_looped(op) && backend_of(out.device).loops.begin != nullptr);
  return loops ? &out : nullptr;
}

bool as_long(const Type& a, const Type& b) {
  return a.device == b.device && a.spec == b.spec &&
         (a.spec == nullptr ? a.meta.dims.numel() == b.meta.dims.numel() : a.meta.dims == b.meta.dims);
}

/// Which ops join the op before. A loop joins a product if all of it is arithmetic, and so gains by that.
std::vector<bool> find_joins(const Program& program) {
  std::vector<bool> joins(program.ops.size(), false);
  bool arithmetic = true;  // of what joins the op, and so on to the end of the loop
  for (size_t i = program.ops.size(); i-- > 1;) {
    const Op &op = program.ops[i], &before = program.ops[i - 1];
    const Type *const type = looped(program, op), *const other = looped(program, before);
    arithmetic = is_arithmetic(op) && (i + 1 == program.ops.size() || !joins[i + 1] || arithmetic);
    if (type == nullptr || other == nullptr || !is_looped(op) || !as_long(*type, *other)) continue;
    joins[i] = is_looped(before) || (arithmetic && call::gains_by_epilogue(other->meta.dtype));
  }
  return joins;
}

}  // namespace

Program fuse_loops(const Program& program) {
  const std::vector<bool> joins = find_joins(program);
  Program result;
  Rewriter copy(program, result);
  copy.enter_all();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    copy.copy(i);
    result.ops.back().joins = program.ops[i].joins || joins[i];
  }
  copy.leave_all();
  return result;
}

}  // namespace shard::program

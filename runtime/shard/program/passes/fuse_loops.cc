#include <algorithm>

#include "shard/call/fused_loop.h"
#include "shard/kernels/epilogue_ops.h"
#include "shard/program/ir/loops.h"
#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// The type that determines the length of a loop over this op, or after it; null if there is none.
const Type* looped(const Program& program, const Op& op) {
  if ((!is_looped(op) && !leads_loop(op)) || op.outputs.size() != 1 || op.outputs[0] == 0) return nullptr;
  const Type& out = program.value(op.outputs[0]).type;
  const bool loops = out.device == kCpu || backend_of(out.device).loops.begin != nullptr;
  return loops ? &out : nullptr;
}

/// True if kernels of the product's device may compute the op with the product: an activation of it, or a sum of it and one element for each
/// of its columns.
bool finishes(const Program& program, const Op& op, const Op& product) {
  const Type& out = program.value(product.outputs[0]).type;
  if (out.meta.dims.rank() == 0 || !is_floating(out.meta.dtype)) return false;
  if (!is_epilogue_op(out.device.backend, op.entry->op->name, out.meta.dtype, op.attrs)) return false;
  const int64_t columns = out.meta.dims[out.meta.dims.rank() - 1];
  const auto is_product = [&](const Operand& input) { return input.value == product.outputs[0]; };
  return std::count_if(op.inputs.begin(), op.inputs.end(), is_product) == 1 &&
         std::all_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) {
           return is_product(input) ||
                  (input.value != 0 && program.value(input.value).type.meta.dims.numel() == columns);
         });
}

bool as_long(const Type& a, const Type& b) {
  return a.device == b.device && a.spec == b.spec &&
         (a.spec == nullptr ? a.meta.dims.numel() == b.meta.dims.numel() : a.meta.dims == b.meta.dims);
}

/// Which ops join the op before. On the CPU a loop joins a product if all of it is arithmetic, and so gains by that; on a device, if the
/// product's kernel may take its first op, whatever follows.
std::vector<bool> find_joins(const Program& program) {
  std::vector<bool> joins(program.ops.size(), false);
  bool arithmetic = true;  // of what joins the op, and so on to the end of the loop
  for (size_t i = program.ops.size(); i-- > 1;) {
    const Op &op = program.ops[i], &before = program.ops[i - 1];
    const Type *const type = looped(program, op), *const other = looped(program, before);
    arithmetic = is_arithmetic(op) && (i + 1 == program.ops.size() || !joins[i + 1] || arithmetic);
    if (type == nullptr || other == nullptr || !is_looped(op) || !as_long(*type, *other)) continue;
    const bool ends_product = other->device == kCpu ? arithmetic && call::gains_by_epilogue(other->meta.dtype)
                                                    : finishes(program, op, before);
    joins[i] = is_looped(before) || ends_product;
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

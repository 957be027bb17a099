#include "shard/core/grad_mask.h"
#include "shard/program/ir/merger.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// What the outputs of a program come from.
struct Live {
  std::vector<bool> ops;     // by the number of the op: its results are used
  std::vector<bool> values;  // by value: an op that is used reads it, or it is an output
};

/// Found from the last op to the first.
Live find_live(const Program& program, bool keep_collectives) {
  const AliasTrees trees(program);
  std::vector<bool> used(program.value_count(), false);
  // By root: whether the ops after the current one read it.
  std::vector<bool> read(program.value_count(), false);
  for (ValueId id = 1; id < program.value_count(); ++id) {
    used[id] = trees.is_output(id);
    read[id] = trees.of(id).entry || trees.of(id).output;
  }
  std::vector<bool> live(program.ops.size(), false);
  for (size_t i = program.ops.size(); i-- > 0;) {
    const Op& op = program.ops[i];
    live[i] = keep_collectives && crosses_mesh(program, op);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const ValueId id = op.outputs[o];
      if (id != 0 && (used[id] || (op.writes[o] && read[program.value(id).root]))) live[i] = true;
    }
    if (!live[i]) continue;
    for (const Operand& input : op.inputs) {
      used[input.value] = true;
      read[program.value(input.value).root] = true;
    }
  }
  return {std::move(live), std::move(used)};
}

/// True for a call with outputs that are used, and others that are not and that its kernel can leave out.
bool leaves_out_more(const Op& op, const std::vector<bool>& used) {
  bool any_used = false, any_left_out = false;
  for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
    for (size_t i = op.output_slots[slot].first; i < op.output_slots[slot].first + op.output_slots[slot].count; ++i) {
      if (op.outputs[i] == 0) continue;
      any_used = any_used || used[op.outputs[i]];
      any_left_out = any_left_out || (op.may_leave_out(slot) && !used[op.outputs[i]]);
    }
  }
  return any_used && any_left_out;
}

/// The call without these.
Op without_unused(const Op& op, const std::vector<bool>& used) {
  Op smaller = op;
  smaller.outputs.clear();
  for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
    if (!op.may_leave_out(slot)) continue;
    const ValueId output = op.outputs[op.output_slots[slot].first];
    if (output == 0 || used[output]) continue;
    GradMask mask(std::get<int64_t>(smaller.attrs.back()));
    mask.remove(slot);
    smaller.attrs.back() = static_cast<int64_t>(mask);
  }
  return smaller;
}

Program keep_live(const Program& program, const Live& live) {
  Program result;
  Rewriter copy(program, result);
  copy.enter_all();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (!live.ops[i]) continue;
    if (leaves_out_more(program.ops[i], live.values))
      copy.copy_as(i, without_unused(program.ops[i], live.values),
                   std::vector<ValueId>(program.ops[i].outputs.size(), 0), program.ops[i].writes);
    else copy.copy(i);
  }
  copy.leave_all();
  return result;
}

}  // namespace

Program dce(const Program& program) { return keep_live(program, find_live(program, true)); }

Program dce_with_collectives(const Program& program) { return keep_live(program, find_live(program, false)); }

}  // namespace shard::program

#include "shard/program/ir/merger.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// The ops whose results are used, found from the last op to the first.
std::vector<bool> find_live(const Program& program, bool keep_collectives) {
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
  return live;
}

Program keep_live(const Program& program, const std::vector<bool>& live) {
  Program result;
  Rewriter copy(program, result);
  copy.enter_all();
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (live[i]) copy.copy(i);
  }
  copy.leave_all();
  return result;
}

}  // namespace

Program dce(const Program& program) { return keep_live(program, find_live(program, true)); }

Program dce_with_collectives(const Program& program) { return keep_live(program, find_live(program, false)); }

}  // namespace shard::program

#include "shard/program/ir/alias.h"
#include "shard/program/ir/infer.h"
#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/passes.h"
#include "shard/reshard/plan.h"

namespace shard::program {
namespace {

/// Swaps a reshard and an elementwise op with one argument if the elements on the other side of the
/// op are smaller.
class ReshardHoister {
 public:
  explicit ReshardHoister(const Program& program)
      : program_(program), trees_(program), copy_(program, result_), reader_(program.value_count(), -1),
        dropped_(program.ops.size(), false) {
    for (size_t i = 0; i < program.ops.size(); ++i) {
      for (const Operand& input : program.ops[i].inputs)
        reader_[input.value] = reader_[input.value] == -1 ? static_cast<int>(i) : -2;
    }
  }

  Program run() {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      if (!dropped_[i] && !turn(i)) copy_.copy(i);
    }
    copy_.leave_all();
    return std::move(result_);
  }

 private:
  /// If op `i` and the only reader of its result are such a pair, writes both in the other order.
  bool turn(size_t i) {
    const Op& first = program_.ops[i];
    if (first.outputs.size() != 1 || first.outputs[0] == 0 || !is_private(first.outputs[0])) return false;
    const int reader = reader_[first.outputs[0]];
    if (reader < 0) return false;
    const Op& second = program_.ops[static_cast<size_t>(reader)];
    const bool before = second.kind == Kind::reshard && is_elementwise(first);
    if (!before && !(first.kind == Kind::reshard && is_elementwise(second))) return false;
    const Op& move = before ? second : first;
    const Op& compute = before ? first : second;
    const Type& from = program_.value(first.inputs[0].value).type;
    const Type& middle = program_.value(first.outputs[0]).type;
    const Type& to = program_.value(second.outputs[0]).type;
    if (from.spec->layout().has_partial() || to.spec->layout().has_partial() || !(from.meta.dims == to.meta.dims))
      return false;
    if (from.spec->mesh() != to.spec->mesh() || from.spec->mesh()->costs().memory_cap != 0) return false;
    // The type of the value between them in the other order.
    const Type other{before ? from.meta : to.meta, before ? to.spec : from.spec, middle.device};
    if (plan_reshard(other.meta, from.spec, to.spec)->ns >= plan_reshard(middle.meta, from.spec, to.spec)->ns)
      return false;
    const Type* const input = before ? &other : &from;
    if (!computes_type(compute, {&input, 1}, before ? to : other)) return false;
    ValueId value = copy_(first.inputs[0].value);
    value = add(before ? move : compute, value, other);
    value = add(before ? compute : move, value, to);
    copy_.map(second.outputs[0], value);
    dropped_[static_cast<size_t>(reader)] = true;
    return true;
  }

  ValueId add(Op op, ValueId input, const Type& type) {
    op.inputs = {{input, 0}};
    op.slots = {{0, 1}};
    op.outputs.clear();
    op.joins = false;
    return add_single(result_, std::move(op), type);
  }

  /// True if only one op sees the value.
  bool is_private(ValueId id) const {
    const AliasTree& tree = trees_.of(id);
    return !tree.entry && !tree.output && tree.members.size() == 1;
  }

  static bool is_elementwise(const Op& op) {
    if (op.kind != Kind::call || op.inplace || !op.entry->op->pointwise) return false;
    return op.inputs.size() == 1 && op.inputs[0].value != 0 && op.outputs.size() == 1 && op.outputs[0] != 0;
  }

  const Program& program_;
  const AliasTrees trees_;
  Program result_;
  Rewriter copy_;
  std::vector<int> reader_;    // for each value: the only op that reads it; -1: none; -2: several
  std::vector<bool> dropped_;  // ops that have been written already
};

}  // namespace

Program hoist_reshards(const Program& program) { return ReshardHoister(program).run(); }

}  // namespace shard::program

#include <algorithm>

#include "shard/program/ir/infer.h"
#include "shard/program/ir/merger.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

class BufferDonor {
 public:
  explicit BufferDonor(const Program& program) : program_(program), trees_(program), copy_(program, result_) {}

  Program run() {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const ValueId target = target_of(i);
      if (target == 0) copy_.copy(i);
      else copy_.copy_as(i, in_place(i), {target}, {true});
      result_.ops.back().joins = program_.ops[i].joins;  // all ops stay in their order
    }
    copy_.leave_all();
    return std::move(result_);
  }

 private:
  Op in_place(size_t i) const {
    Op op = program_.ops[i];
    op.outputs.clear();
    op.inplace = true;
    return op;
  }

  /// The argument that op `i` may write over; 0 if there is none.
  ValueId target_of(size_t i) const {
    const Op& op = program_.ops[i];
    if (op.kind != Kind::call || op.inplace || !op.entry->inplace || !op.entry->op->elementwise || op.entry->op->random)
      return 0;
    if (op.outputs.size() != 1 || op.outputs[0] == 0 || program_.value(op.outputs[0]).source != 0) return 0;
    const std::span<const AliasDef> aliases = op.entry->op->aliases;
    if (aliases.size() != 1 || aliases[0].kind != AliasDef::Kind::inplace) return 0;
    if ((op.entry->op->no_need_buffer >> aliases[0].input & 1u) != 0) return 0;
    const SlotRange& slot = op.slots[static_cast<size_t>(aliases[0].input)];
    const ValueId target = slot.count == 1 ? op.inputs[slot.first].value : 0;
    if (target == 0 || !(program_.value(target).type == program_.value(op.outputs[0]).type)) return 0;
    const AliasTree& tree = trees_.of(target);
    if (tree.entry || tree.output || tree.last_use != static_cast<int>(i)) return 0;
    const ValueId root = program_.value(target).root;
    const auto overlaps = [&](const Operand& input) {
      return input.value != target && program_.value(input.value).root == root;
    };
    if (std::any_of(op.inputs.begin(), op.inputs.end(), overlaps)) return 0;
    return computes_there(i) ? target : 0;
  }

  /// In-place forms keep the layout of their target, so their placement may differ from that of the
  /// functional form.
  bool computes_there(size_t i) const {
    const Op op = in_place(i);
    std::vector<const Type*> types;
    for (const Operand& input : op.inputs)
      types.push_back(input.value == 0 ? nullptr : &program_.value(input.value).type);
    return computes_type(op, types, program_.value(program_.ops[i].outputs[0]).type);
  }

  const Program& program_;
  const AliasTrees trees_;
  Program result_;
  Rewriter copy_;
};

}  // namespace

Program donate_buffers(const Program& program) { return BufferDonor(program).run(); }

}  // namespace shard::program

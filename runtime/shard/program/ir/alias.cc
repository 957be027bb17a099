#include "shard/program/ir/alias.h"

#include <algorithm>

namespace shard::program {

AliasTrees::AliasTrees(const Program& program)
    : index_(program.value_count(), 0), outputs_(program.value_count(), false) {
  // A source has a lower number than what shares its buffer.
  for (ValueId id = 1; id < program.value_count(); ++id) {
    const Value& value = program.value(id);
    if (value.source == 0) {
      index_[id] = static_cast<uint32_t>(trees_.size());
      trees_.push_back({.root = id, .members = {}, .writes = {}, .entry = value.op < 0, .output = false});
    } else {
      index_[id] = index_[value.source];
    }
    trees_[index_[id]].members.push_back(id);
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (const Operand& input : op.inputs) {
      if (input.value != 0) of(input.value).last_use = static_cast<int>(i);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0 && op.writes[o])
        trees_[index_[op.outputs[o]]].writes.push_back({static_cast<int>(i), op.outputs[o]});
    }
  }
  const auto mark_output = [&](ValueId id) {
    if (id == 0) return;
    outputs_[id] = true;
    of(id).output = true;
  };
  for (const Named& output : program.outputs) mark_output(output.value);
  for (const GradientEffect& effect : program.gradients) mark_output(effect.gradient);
}

const TreeWrite* AliasTrees::last_write(ValueId value, int op) const {
  const std::vector<TreeWrite>& writes = of(value).writes;
  const auto after =
      std::lower_bound(writes.begin(), writes.end(), op, [](const TreeWrite& write, int at) { return write.op < at; });
  return after == writes.begin() ? nullptr : &*std::prev(after);
}

bool AliasTrees::unchanged(ValueId value, int earlier, int later) const {
  return last_write(value, earlier) == last_write(value, later);
}

ValueId handle_of(const Program& program, ValueId id) {
  while (program.value(id).op >= 0 && program.value(id).source != 0) {
    const Op& op = program.ops[static_cast<size_t>(program.value(id).op)];
    const bool written =
        (op.inplace || op.kind == Kind::copy) && program.value(program.value(id).source).type == program.value(id).type;
    if (!written) break;
    id = program.value(id).source;
  }
  return id;
}

namespace {

bool is_write(const Op& op, ValueId id) {
  const auto output = std::find(op.outputs.begin(), op.outputs.end(), id) - op.outputs.begin();
  return op.writes[static_cast<size_t>(output)];
}

}  // namespace

std::vector<InplaceChain> inplace_chains(const Program& program) {
  std::vector<InplaceChain> chains;
  const AliasTrees trees(program);
  for (const AliasTree& tree : trees.all()) {
    if (tree.members.size() == 1) continue;
    InplaceChain& chain = chains.emplace_back(InplaceChain{tree.root, {}});
    for (const ValueId id : std::span(tree.members).subspan(1)) {
      const Value& value = program.value(id);
      chain.links.push_back(
          {id, value.source, value.op, value.op >= 0 && is_write(program.ops[static_cast<size_t>(value.op)], id)});
    }
  }
  return chains;
}

}  // namespace shard::program

#include "program/trees.h"

#include <algorithm>

namespace shard::program {
namespace {

std::vector<Tree> find_trees(const Program& program) {
  std::vector<Tree> trees(program.value_count());
  const auto tree = [&](ValueId id) -> Tree& { return trees[program.value(id).root]; };
  for (const std::vector<Named>* list : {&program.inputs, &program.parameters}) {
    for (const Named& each : *list) tree(each.value).entry = each.value != 0;
  }
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (const Operand& input : op.inputs) tree(input.value).last_use = static_cast<int>(i);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0 && op.writes[o]) tree(op.outputs[o]).last_write = static_cast<int>(i);
    }
  }
  for (const Named& output : program.outputs) tree(output.value).output = output.value != 0;
  for (const GradientEffect& effect : program.gradients) tree(effect.gradient).output = effect.gradient != 0;
  return trees;
}

}  // namespace

Trees::Trees(const Program& program) : program_(program), trees_(find_trees(program)), outputs_(program.value_count(), false) {
  for (const Named& output : program.outputs) outputs_[output.value] = true;
  for (const GradientEffect& effect : program.gradients) outputs_[effect.gradient] = true;
}

bool crosses_mesh(const Program& program, const Op& op) {
  const auto is_on_mesh = [&](ValueId id) { return program.value(id).type.spec != nullptr; };
  const bool gives = std::any_of(op.outputs.begin(), op.outputs.end(), is_on_mesh);
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) { return input.value != 0 && is_on_mesh(input.value) != gives; });
}

Merger::Merger(const Program& from, Program& to) : Rewriter(from, to), program_(from), trees_(find_trees(from)), joined_(from.value_count(), 0) {}

ValueId Merger::tree_of(ValueId id) const {
  ValueId root = program_.value(id).root;
  while (joined_[root] != 0) root = joined_[root];
  return root;
}

bool Merger::merge(size_t i, ValueId id, ValueId same) {
  const ValueId from = tree_of(id), to = tree_of(same);
  const Tree& gone = trees_[from];
  Tree& kept = trees_[to];
  if (gone.last_write >= 0 || kept.last_write >= static_cast<int>(i) || (gone.output && (kept.entry || kept.output))) return false;
  map(id, (*this)(same));
  joined_[from] = to;
  kept.output = kept.output || gone.output;
  kept.last_use = std::max(kept.last_use, gone.last_use);
  return true;
}

}  // namespace shard::program

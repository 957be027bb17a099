#include "shard/program/ir/merger.h"

#include <algorithm>

namespace shard::program {

bool crosses_mesh(const Program& program, const Op& op) {
  const auto is_on_mesh = [&](ValueId id) { return program.value(id).type.spec != nullptr; };
  const bool makes_distributed = std::any_of(op.outputs.begin(), op.outputs.end(), is_on_mesh);
  return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) {
    return input.value != 0 && is_on_mesh(input.value) != makes_distributed;
  });
}

Merger::Merger(const Program& from, Program& to)
    : Rewriter(from, to), program_(from), result_(to), trees_(from), joined_(from.value_count(), 0) {}

ValueId Merger::tree_of(ValueId id) const {
  ValueId root = program_.value(id).root;
  while (joined_[root] != 0) root = joined_[root];
  return root;
}

bool Merger::merge(size_t i, ValueId id, ValueId same) {
  if (!join(i, id, same)) return false;
  map(id, (*this)(same));
  return true;
}

bool Merger::share(size_t i, ValueId id, ValueId same) {
  if (!join(i, id, same)) return false;
  map(id, add_alias(result_, (*this)(same), program_.value(id).type));
  return true;
}

bool Merger::join(size_t i, ValueId id, ValueId same) {
  const ValueId from = tree_of(id), to = tree_of(same);
  const AliasTree& gone = trees_.of(from);
  AliasTree& kept = trees_.of(to);
  const auto disturbs = [&](const TreeWrite& write) {
    return write.op >= static_cast<int>(i) && (gone.output || write.op <= gone.last_use);
  };
  if (gone.last_write() >= 0 || std::any_of(kept.writes.begin(), kept.writes.end(), disturbs) ||
      (gone.output && (kept.entry || kept.output)))
    return false;
  joined_[from] = to;
  kept.output = kept.output || gone.output;
  kept.last_use = std::max(kept.last_use, gone.last_use);
  return true;
}

}  // namespace shard::program

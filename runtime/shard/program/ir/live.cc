#include "shard/program/ir/live.h"

#include "shard/program/ir/alias.h"

namespace shard::program {

int64_t bytes_of(const Type& type) {
  return static_cast<int64_t>(
      (type.spec == nullptr ? type.meta : shard_meta(type.meta, *type.spec, Coordinate{})).bytes());
}

namespace {

/// For each tree, the last op that reads its bytes. A read of the shape alone needs no buffer.
std::vector<int> last_reads(const Program& program) {
  std::vector<int> last(program.value_count(), -1);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (op.reads_bytes(k)) last[program.value(op.inputs[k].value).root] = static_cast<int>(i);
    }
  }
  return last;
}

}  // namespace

bool is_on_mesh(const Program& program) {
  for (ValueId id = 1; id < program.value_count(); ++id) {
    if (program.value(id).type.spec != nullptr) return true;
  }
  return false;
}

std::vector<int64_t> live_bytes(const Program& program) {
  const bool on_mesh = is_on_mesh(program);
  std::vector<int64_t> change(program.ops.size() + 1, 0);
  const AliasTrees trees(program);
  const std::vector<int> last = last_reads(program);
  for (const AliasTree& tree : trees.all()) {
    if (tree.entry || (on_mesh && program.value(tree.root).type.spec == nullptr)) continue;
    const auto first = static_cast<size_t>(program.value(tree.root).op);
    const size_t end =
        tree.output ? program.ops.size() : static_cast<size_t>(std::max(last[tree.root], static_cast<int>(first))) + 1;
    const int64_t bytes = bytes_of(program.value(tree.root).type);
    change[first] += bytes;
    change[end] -= bytes;
  }
  int64_t live = 0;
  for (int64_t& each : change) each = live += each;
  change.pop_back();
  return change;
}

}  // namespace shard::program

// Merges values of a program that have the same elements.
#pragma once

#include <vector>

#include "shard/program/ir/alias.h"
#include "shard/program/ir/rewrite.h"

namespace shard::program {

/// True if an op takes values onto a mesh or off it. Plain tensors may differ from rank to rank,
/// and so may what is done with them. Passes leave such ops alone, because ranks would otherwise no
/// longer agree on what is sent.
bool crosses_mesh(const Program& program, const Op& op);

/// A rewriter that can replace a value by another one with the same elements.
class Merger : public Rewriter {
 public:
  Merger(const Program& from, Program& to);

  /// The tree that `id`, a value of `from`, is in after the merges so far.
  const AliasTree& tree(ValueId id) const { return trees_.of(tree_of(id)); }
  /// Replaces `id`, which op `i` would compute in a new buffer, by `same`, which has the same
  /// elements when op i runs (both are values of `from`). Returns false and does nothing if the two
  /// buffers could be told apart: `id` is written, or `same` is written while something still reads
  /// `id`, or the caller would get the buffer of an input, a parameter or another output.
  bool merge(size_t i, ValueId id, ValueId same);
  /// The same for values with equal bytes but different types: `id` becomes another type of the
  /// same buffer.
  bool share(size_t i, ValueId id, ValueId same);

 private:
  bool join(size_t i, ValueId id, ValueId same);
  ValueId tree_of(ValueId id) const;

  const Program& program_;
  Program& result_;
  AliasTrees trees_;
  std::vector<ValueId> joined_;  // by root: the root of the tree that it has been merged into
};

}  // namespace shard::program

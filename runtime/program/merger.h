// Lets values of a program be other ones that have the same elements.
#pragma once

#include <vector>

#include "program/alias.h"
#include "program/rewrite.h"

namespace shard::program {

/// Whether an op takes values onto a mesh or off it. Plain tensors may differ from rank to rank, and so may what is done with them: passes leave
/// such ops alone, or ranks would no longer agree on what is sent.
bool crosses_mesh(const Program& program, const Op& op);

/// A rewriter that may let a value be another one, which has the same elements.
class Merger : public Rewriter {
 public:
  Merger(const Program& from, Program& to);

  /// What happens to the tree that `id`, a value of `from`, is in by now.
  const AliasTree& tree(ValueId id) const { return trees_.of(tree_of(id)); }
  /// Has `id`, which op `i` would make in a new buffer, be `same` (both of `from`), whose elements it has when op i runs. Returns false, and does
  /// nothing, where the two buffers can be told apart: `id` is written, or `same` while somebody still reads `id`, or the caller would get the
  /// buffer of an input, a parameter or another output.
  bool merge(size_t i, ValueId id, ValueId same);
  /// The same where the bytes are equal, but the types are not: `id` becomes another type of the same buffer.
  bool share(size_t i, ValueId id, ValueId same);

 private:
  bool join(size_t i, ValueId id, ValueId same);
  ValueId tree_of(ValueId id) const;

  const Program& program_;
  Program& result_;
  AliasTrees trees_;
  std::vector<ValueId> joined_;  // by root: the root of the tree that it has become a part of
};

}  // namespace shard::program

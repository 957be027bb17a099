// What a program does with the buffers of its values.
#pragma once

#include <vector>

#include "program/rewrite.h"

namespace shard::program {

/// What happens to an alias tree.
struct Tree {
  bool entry = false;   // a member is an input or parameter
  bool output = false;  // a member is an output or gradient, so that the caller has the buffer afterwards
  int last_write = -1;  // the op; -1: none
  int last_use = -1;    // the op that names a member last
};

class Trees {
 public:
  explicit Trees(const Program& program);

  const Tree& of(ValueId id) const { return trees_[program_.value(id).root]; }
  /// Whether the value itself is an output or gradient.
  bool is_output(ValueId id) const { return outputs_[id]; }

 private:
  const Program& program_;
  std::vector<Tree> trees_;  // by root
  std::vector<bool> outputs_;
};

/// Whether an op takes values onto a mesh or off it. Plain tensors may differ from rank to rank, and so may what is done with them: passes leave
/// such ops alone, or ranks would no longer agree on what is sent.
bool crosses_mesh(const Program& program, const Op& op);

/// A rewriter that may let a value be another one, which has the same elements.
class Merger : public Rewriter {
 public:
  Merger(const Program& from, Program& to);

  /// What happens to the tree that `id`, a value of `from`, is in by now.
  const Tree& tree(ValueId id) const { return trees_[tree_of(id)]; }
  /// Has `id`, which op `i` would make in a new buffer, be `same` (both of `from`), whose elements it has when op i runs. Returns false, and does
  /// nothing, where the two buffers can be told apart: one of them is written from there on, or the caller would get the buffer of an input,
  /// a parameter or another output.
  bool merge(size_t i, ValueId id, ValueId same);

 private:
  ValueId tree_of(ValueId id) const;

  const Program& program_;
  std::vector<Tree> trees_;      // by root
  std::vector<ValueId> joined_;  // by root: the root of the tree that it has become a part of
};

}  // namespace shard::program

// Which values of a program share bytes, and who writes them when.
#pragma once

#include <vector>

#include "program/program.h"

namespace shard::program {

/// A write of a tree.
struct TreeWrite {
  int op = 0;
  ValueId value = 0;  // the output that is the new state
};

/// The values on one buffer. Each but the root has another member as its source: one that has several is where the tree branches.
struct AliasTree {
  ValueId root = 0;
  std::vector<ValueId> members;   // in the order in which they are made, the root first
  std::vector<TreeWrite> writes;  // in the order of the ops
  int last_use = -1;              // the op that reads a member last; -1: none
  bool entry = false;             // the root is an input or parameter: others see the buffer before and after a run
  bool output =
      false;  // a member is an output of the program, or the gradient of a leaf: the caller sees it after a run

  /// The op that writes it last; -1: none.
  int last_write() const { return writes.empty() ? -1 : writes.back().op; }
};

/// The trees of a program. Linear in its size; questions take logarithmic time in the writes of one tree.
class AliasTrees {
 public:
  explicit AliasTrees(const Program& program);

  /// All trees, by root.
  const std::vector<AliasTree>& all() const { return trees_; }
  const AliasTree& of(ValueId value) const { return trees_[index_[value]]; }
  AliasTree& of(ValueId value) { return trees_[index_[value]]; }
  /// Whether the value itself is an output or the gradient of a leaf.
  bool is_output(ValueId value) const { return outputs_[value]; }
  /// Whether the bytes of `value` are the same before op `later` runs as they were before op `earlier` (earlier <= later).
  bool unchanged(ValueId value, int earlier, int later) const;
  /// The last write of the tree of `value` before op `op` runs; null where there is none.
  const TreeWrite* last_write(ValueId value, int op) const;

 private:
  std::vector<AliasTree> trees_;
  std::vector<uint32_t> index_;  // of values in trees_
  std::vector<bool> outputs_;    // by value
};

/// The value that a handle had before ops wrote it in place; the value itself where none did.
ValueId handle_of(const Program& program, ValueId value);

/// A member of a tree and how it came to be in it.
struct ChainLink {
  ValueId value = 0;
  ValueId source = 0;
  int op = 0;
  bool written = false;  // the op writes the buffer; else the value only views it
};

/// A tree with more than one member.
struct InplaceChain {
  ValueId root = 0;
  std::vector<ChainLink> links;  // in the order of the ops; a source may have several
};

/// The chains of views and in-place ops of a program, by root. They branch where a value has several views or writers.
std::vector<InplaceChain> inplace_chains(const Program& program);

}  // namespace shard::program

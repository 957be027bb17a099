// Alias analysis: which values of a program share bytes, and which ops write them when.
#pragma once

#include <vector>

#include "shard/core/export.h"
#include "shard/program/ir/program.h"

namespace shard::program {

/// A write to a tree.
struct TreeWrite {
  int op = 0;
  ValueId value = 0;  // the output that is the new state
};

/// The values that share one buffer. Each member except the root has another member as its source.
/// The tree branches where several members have the same source.
struct AliasTree {
  ValueId root = 0;
  std::vector<ValueId> members;   // in the order in which ops create them, the root first
  std::vector<TreeWrite> writes;  // in the order of the ops
  int last_use = -1;              // the last op that reads a member, or -1
  bool entry = false;             // the root is an input or parameter, so others see the buffer before and after a run
  // A member is an output of the program or the gradient of a leaf, so the caller sees it after a
  // run.
  bool output = false;

  /// The last op that writes it, or -1.
  int last_write() const { return writes.empty() ? -1 : writes.back().op; }
};

/// The alias trees of a program. Construction takes linear time in the size of the program; queries
/// take logarithmic time in the number of writes to one tree.
class SHARD_API AliasTrees {
 public:
  explicit AliasTrees(const Program& program);

  /// All trees, by root.
  const std::vector<AliasTree>& all() const { return trees_; }
  const AliasTree& of(ValueId value) const { return trees_[index_[value]]; }
  AliasTree& of(ValueId value) { return trees_[index_[value]]; }
  /// True if the value itself is an output or the gradient of a leaf.
  bool is_output(ValueId value) const { return outputs_[value]; }
  /// True if the bytes of `value` before op `later` runs are the same as before op `earlier` ran
  /// (earlier <= later).
  bool unchanged(ValueId value, int earlier, int later) const;
  /// The last write to the tree of `value` before op `op` runs, or null.
  const TreeWrite* last_write(ValueId value, int op) const;

 private:
  std::vector<AliasTree> trees_;
  std::vector<uint32_t> index_;  // for each value, its index in trees_
  std::vector<bool> outputs_;    // by value
};

/// The value that a handle had before ops wrote it in place. If none did, the value itself.
SHARD_API ValueId handle_of(const Program& program, ValueId value);

/// A member of a tree, and how it became one.
struct ChainLink {
  ValueId value = 0;
  ValueId source = 0;
  int op = 0;
  bool written = false;  // the op writes the buffer; otherwise the value is only a view of it
};

/// A tree with more than one member.
struct InplaceChain {
  ValueId root = 0;
  std::vector<ChainLink> links;  // in the order of the ops; several links may have the same source
};

/// The chains of views and in-place ops of a program, by root. A chain branches where a value has
/// several views or writers.
SHARD_API std::vector<InplaceChain> inplace_chains(const Program& program);

}  // namespace shard::program

// Copies parts of a program into another one. Passes and the split use it: they never edit a
// program in place.
#pragma once

#include "shard/program/ir/program.h"

namespace shard::program {

/// Maps values of `from` to values of `to`, as they are entered, copied or mapped.
class Rewriter {
 public:
  Rewriter(const Program& from, Program& to) : from_(from), to_(to), map_(from.value_count(), 0) {}

  /// The value of `to` for a value of `from`. Throws internal if there is none yet.
  ValueId operator()(ValueId id) const;
  bool has(ValueId id) const { return id != 0 && map_[id] != 0; }
  void map(ValueId from, ValueId to) { map_[from] = to; }

  /// Makes an input or parameter one of `to`, in `list`. It keeps its name.
  void enter(const Named& value, std::vector<Named>& list);
  void enter_all();
  /// Copies the outputs, gradients and draws of `from` to `to`.
  void leave_all();
  /// Appends op `i` of `from` to `to`. The copy does not join the op before it, which may be a
  /// different one there.
  void copy(size_t i);
  /// Like copy(), but as another op that computes the same values, or all but those that its mask leaves out.
  void copy_as(size_t i, Op op, std::vector<ValueId> sources, std::vector<bool> writes);

 private:
  const Program& from_;
  Program& to_;
  std::vector<ValueId> map_;
};

/// Adds an op with one output, and returns that output.
ValueId add_single(Program& program, Op op, const Type& type, ValueId source = 0, bool writes = false);
/// An op that reinterprets `value` as another type with the same number of bytes.
Op make_alias(ValueId value, const Type& type);
/// `value` as another type with the same number of bytes, in the same buffer. Returns the value
/// itself if it has that type.
ValueId add_alias(Program& program, ValueId value, const Type& type);
/// A copy of `value` in a buffer of its own.
ValueId add_clone(Program& program, ValueId value);

}  // namespace shard::program

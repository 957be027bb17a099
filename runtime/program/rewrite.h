// Copies parts of a program into another one. Passes and the split are written with it: they never edit a program in place.
#pragma once

#include "program/program.h"

namespace shard::program {

/// Values of `from` become values of `to` as they are entered, copied or mapped.
class Rewriter {
 public:
  Rewriter(const Program& from, Program& to) : from_(from), to_(to), map_(from.value_count(), 0) {}

  /// The value of `to` that a value of `from` has become. Throws internal where it has not.
  ValueId operator()(ValueId id) const;
  bool has(ValueId id) const { return id != 0 && map_[id] != 0; }
  void map(ValueId from, ValueId to) { map_[from] = to; }

  /// Makes an input or parameter one of `to`, in `list`. Its name stays.
  void enter(const Named& value, std::vector<Named>& list);
  void enter_all();
  /// Gives `to` the outputs, gradients and draws of `from`.
  void leave_all();
  /// Adds op `i` of `from` at the end of `to`. It does not join the one before, which may be another one there.
  void copy(size_t i);
  /// The same, as another op that gives the same values.
  void copy_as(size_t i, Op op, std::vector<ValueId> sources, std::vector<bool> writes);

 private:
  const Program& from_;
  Program& to_;
  std::vector<ValueId> map_;
};

/// Adds an op with one output, and returns that.
ValueId add_single(Program& program, Op op, const Type& type, ValueId source = 0, bool writes = false);
/// The op that gives `value` another type of as many bytes.
Op make_alias(ValueId value, const Type& type);
/// `value` under another type of as many bytes, in the same buffer; itself where it has that type.
ValueId add_alias(Program& program, ValueId value, const Type& type);
/// A copy of `value` in a buffer of its own.
ValueId add_clone(Program& program, ValueId value);

}  // namespace shard::program

// Captured programs: what a function does with tensors, as values and the ops between them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shard/call/op_entry.h"
#include "shard/core/call_site.h"
#include "shard/core/export.h"
#include "shard/core/tensor.h"
#include "shard/dist/spec.h"

namespace shard::program {

/// The number of a value in its program. 0 means no value.
using ValueId = uint32_t;

/// What is known of a value before the program runs. The meta is global. The layout is null for a
/// plain tensor.
struct Type {
  Meta meta;
  const DistSpec* spec = nullptr;
  Device device;
  bool operator==(const Type&) const = default;
};
/// "f32[8, 4]", "f32[8, 4] [dp, -] on mesh(dp=2)"
SHARD_API std::string to_string(const Type& type);
SHARD_API Type type_of(const TensorImpl& tensor);

/// A tensor of a program: a place in a buffer. Values that share a buffer form an *alias tree*,
/// whose root owns the buffer. The bytes of a value are those at its place when it is read; an
/// operand says after which write to the tree that is.
struct Value {
  Type type;
  int op = -1;         // the op that creates it; -1 for an input or parameter
  ValueId source = 0;  // the value whose buffer it shares; 0 for a root
  ValueId root = 0;    // root of its tree; the value itself for a root
};

/// What an op reads: a value in the state after the last write to its tree.
struct Operand {
  ValueId value = 0;  // 0: absent
  ValueId state = 0;  // the output of the op that last wrote the tree; 0 if none has since its root was created
  bool operator==(const Operand&) const = default;
};

enum class Kind : uint8_t {
  call,         // calls an op of the table
  reshard,      // the same value in another layout, in a new buffer
  relayout,     // sends row-major elements to their owners in another shape and layout
  copy,         // copies input 1 over input 0
  distribute,   // gives a layout to a plain tensor that all ranks have, or one rank
  full_tensor,  // gathers a distributed tensor to a plain one
  clone,        // a copy, possibly on another device
  alias,        // the same bytes with another type
};
SHARD_API std::string_view to_string(Kind kind);

struct SHARD_API Op {
  Kind kind = Kind::call;
  const OpEntry* entry = nullptr;  // of a call
  bool inplace = false;            // the call is of its in-place form
  std::vector<Operand> inputs;     // flat
  std::vector<SlotRange> slots;
  std::vector<Attr> attrs;
  const DistSpec* layout = nullptr;  // the layout of the outputs, for an op without tensor arguments
  std::vector<ValueId> outputs;      // flat; 0 for absent ones
  std::vector<SlotRange> output_slots;
  std::vector<bool> writes;  // for each flat output: it is a new state of its tree
  uint64_t draw = 0;         // for a random op: which draw of the run is its key
  // It runs together with the op just before it: reshards in the same collectives, elementwise ops
  // in one loop.
  bool joins = false;
  int source_rank = -1;  // for distribute: the rank that has the value; -1 if all have it
  std::string cause;     // for a reshard: the op and argument that need it, "matmul y"
  CallSite site = {};    // the call site in the user's program, if it writes

  /// The name of the op: "matmul", "add_", "reshard".
  std::string_view name() const;
  /// True if the op reads the bytes of flat input `i`, not only its shape. False for an absent
  /// input.
  bool reads_bytes(size_t i) const;
  /// True for an output slot of a call that the mask of the call, its last attribute, can leave out.
  bool may_leave_out(size_t slot) const { return kind == Kind::call && entry->op->outputs[slot].masked; }
  /// True if the mask leaves it out.
  bool leaves_out(size_t slot) const;
};

/// A value and its name.
struct Named {
  std::string name;
  ValueId value = 0;
};

/// What a run leaves in the gradient of an input or parameter.
struct GradientEffect {
  ValueId leaf = 0;
  ValueId gradient = 0;  // 0: the gradient is cleared
};

/// A program: ops in the order in which they run. Every value is created once. Writes create new
/// states of alias trees, and operands name these states.
class SHARD_API Program {
 public:
  Program() : values_(1), states_(1) {}

  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  /// One more than the highest number.
  size_t value_count() const { return values_.size(); }
  /// Adds a value that no op creates. `source` is another value whose buffer it shares.
  ValueId add_value(const Type& type, ValueId source = 0);
  /// Adds an op at the end, with a new value for each type (an empty optional type is an absent
  /// output). Output i shares the buffer of `sources[i]` (0: none). Sets the states of its inputs.
  /// Returns the number of the op.
  int add_op(Op op, std::span<const std::optional<Type>> outputs, std::span<const ValueId> sources,
             std::vector<bool> writes);
  /// The last write to the tree of `value` in the program so far.
  ValueId state_of(ValueId value) const;

  std::vector<Named> inputs;
  std::vector<Named> parameters;
  std::vector<Named> outputs;  // value 0: an undefined tensor
  std::vector<GradientEffect> gradients;
  std::vector<Op> ops;
  uint64_t world_draws = 0;  // keys that a run draws from the generators of distributed and of plain calls
  uint64_t plain_draws = 0;
  uint64_t world_before = 0;  // in a backward program: keys below these were drawn by its forward run
  uint64_t plain_before = 0;

  /// Throws internal with everything that is wrong: values that are read before they are created,
  /// operands whose state does not match their position, invalid aliases, and types that differ
  /// from those that the ops infer.
  void verify() const;

 private:
  std::vector<Value> values_;
  std::vector<ValueId> states_;  // by root: the last write
};

/// For each root of a tree: whether an op reads bytes of a member.
SHARD_API std::vector<bool> read_trees(const Program& program);

/// The program as text, with one line per op:
///   %5: f32[4, 8] [dp, -] = add(x: %3, y: %4@%7)
/// Here %4@%7 is value 4 in the state after the write that created value 7.
SHARD_API std::string to_text(const Program& program);

}  // namespace shard::program

// Captured programs: what a function does with tensors, as values and the ops between them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "call/op_entry.h"
#include "core/call_site.h"
#include "core/tensor.h"
#include "dist/spec.h"

namespace shard::program {

/// The number of a value in its program. 0: none.
using ValueId = uint32_t;

/// What is known of a value before the program runs. The meta is global, and the layout null for a plain tensor.
struct Type {
  Meta meta;
  const DistSpec* spec = nullptr;
  Device device;
  bool operator==(const Type&) const = default;
};
/// "f32[8, 4]", "f32[8, 4] [dp, -] on mesh(dp=2)"
std::string to_string(const Type& type);
Type type_of(const TensorImpl& tensor);

/// A tensor of a program: a place in a buffer. Values that share a buffer form an *alias tree*; its root owns the buffer. The bytes of a
/// value are those of its place at the time that it is read: an operand says after which write of the tree that is.
struct Value {
  Type type;
  int op = -1;         // that makes it; -1: an input or parameter
  ValueId source = 0;  // whose buffer it shares; 0 for a root
  ValueId root = 0;    // of its tree; itself for a root
};

/// What an op reads: a value, as the last write of its tree before has left it.
struct Operand {
  ValueId value = 0;  // 0: absent
  ValueId state = 0;  // the output of the op that wrote the tree last; 0: nobody has since its root was made
  bool operator==(const Operand&) const = default;
};

enum class Kind : uint8_t {
  call,         // of an op of the table
  reshard,      // the same value in another layout, in a new buffer
  relayout,     // row-major elements go to the owner in another shape and layout
  copy,         // input 1 is written over input 0
  distribute,   // a plain tensor that all ranks have, or one does, gets a layout
  full_tensor,  // the whole of a distributed tensor
  clone,        // a copy, on another device maybe
  alias,        // the same bytes under another type
};
std::string_view to_string(Kind kind);

struct Op {
  Kind kind = Kind::call;
  const OpEntry* entry = nullptr;  // of a call
  bool inplace = false;            // its in-place form
  std::vector<Operand> inputs;     // flat
  std::vector<SlotRange> slots;
  std::vector<Attr> attrs;
  const DistSpec* layout = nullptr;  // that an op without tensor arguments makes its outputs in
  std::vector<ValueId> outputs;      // flat; 0 for absent ones
  std::vector<SlotRange> output_slots;
  std::vector<bool> writes;  // by flat output: it is a new state of its tree
  uint64_t draw = 0;         // of a random op: which draw of the run its key is
  bool joins =
      false;  // it runs with the one just before it: moves in the same collectives, elementwise ops in one loop
  int source_rank = -1;  // of distribute: the rank that has the value; -1: all have
  std::string cause;     // of a move: the op and argument for which it is, "matmul y"
  CallSite site = {};    // where the program called it, if it writes

  /// "matmul", "add_", "reshard"
  std::string_view name() const;
  /// Whether it reads bytes of flat input `i`, and not its shape alone. False for an absent one.
  bool reads_bytes(size_t i) const;
};

/// A value by name.
struct Named {
  std::string name;
  ValueId value = 0;
};

/// What a run leaves in the gradient of an input or parameter.
struct GradientEffect {
  ValueId leaf = 0;
  ValueId gradient = 0;  // 0: it is cleared
};

/// Ops in the order in which they run. Every value is made once; writes make new states of alias trees, and operands name those.
class Program {
 public:
  Program() : values_(1), states_(1) {}

  const Value& value(ValueId id) const { return values_[id]; }
  Value& value(ValueId id) { return values_[id]; }
  /// One more than the highest number.
  size_t value_count() const { return values_.size(); }
  /// A value that no op makes. `source`: another one whose buffer it shares.
  ValueId add_value(const Type& type, ValueId source = 0);
  /// Adds an op at the end, with a new value per type (an empty optional type is an absent output): it shares the buffer of `sources[i]`
  /// (0: none). Sets the states of its inputs. Returns its number.
  int add_op(Op op, std::span<const std::optional<Type>> outputs, std::span<const ValueId> sources,
             std::vector<bool> writes);
  /// The last write of the tree of `value` in the program so far.
  ValueId state_of(ValueId value) const;

  std::vector<Named> inputs;
  std::vector<Named> parameters;
  std::vector<Named> outputs;  // value 0: an undefined tensor
  std::vector<GradientEffect> gradients;
  std::vector<Op> ops;
  uint64_t world_draws = 0;  // keys that a run takes of the generator of distributed calls, and of that of plain ones
  uint64_t plain_draws = 0;
  uint64_t world_before = 0;  // of a backward program: keys below these are those that its forward run drew
  uint64_t plain_before = 0;

  /// Throws internal with all that is wrong: values that are not made before they are read, operands whose state is not that of their
  /// place, aliases that are none, types that differ from what the ops infer.
  void verify() const;

 private:
  std::vector<Value> values_;
  std::vector<ValueId> states_;  // by root: the last write
};

/// By root of a tree: whether an op reads bytes of a member.
std::vector<bool> read_trees(const Program& program);

/// A line per op:
///   %5: f32[4, 8] [dp, -] = add(x: %3, y: %4@%7)
/// where %4@%7 is value 4 as the write that made value 7 has left it.
std::string to_text(const Program& program);

}  // namespace shard::program

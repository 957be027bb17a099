// The reader of a program: shared by the files that read its ops and its gradient.
#pragma once

#include <map>
#include <set>
#include <tuple>

#include "program/json.h"
#include "program/json_node.h"
#include "program/trace.h"

namespace shard::program {

class Reader {
 public:
  Reader(const Json& json, const Scope& scope) : top_(json, ""), scope_(scope) {}

  Trace run();

 private:
  struct Entry {
    Node node;
    Type type;
    ValueId source;
  };

  ValueId next() const { return static_cast<ValueId>(program_.value_count()); }

  void check_format() const;
  static const ProcessMesh* read_mesh(const Node& node);
  Type read_type(const Node& node) const;
  // Entries. Values are numbered as they are made, and a parameter may come in between ops, where the function has met it.

  ValueId read_entry(const Node& node);
  void read_entries();
  Parameter find_parameter(const Node& node, const Type& type) const;
  static Tensor read_constant(const Node& node, const Type& type);
  void add_entries();
  // Ops.

  Operand read_operand(const Node& node);
  struct Outputs {
    std::vector<std::optional<Type>> types;
    std::vector<ValueId> sources;
    std::vector<bool> writes;
    std::vector<Node> nodes;
  };

  void read_output(const Node& node, Outputs& outputs);
  static std::string changed(std::string_view op, const std::string& has);
  /// `read` takes the tensors of a slot of these names one by one.
  template <class F>
  static void read_slots(const Node& node, std::span<const SlotDef> defs, std::string_view op,
                         std::vector<SlotRange>& slots, F&& read) {
    std::vector<std::string_view> names;
    for (const SlotDef& def : defs) names.push_back(def.name);
    node.keys(names, {}, changed(op, fmt::format("{}", fmt::join(names, ", "))));
    size_t flat = 0;
    for (const SlotDef& def : defs) {
      const Node slot = node[def.name];
      std::vector<Node> tensors;
      if (def.kind == SlotDef::Kind::list) tensors = slot.list();
      else tensors.push_back(slot);
      slots.push_back({flat, tensors.size()});
      flat += tensors.size();
      for (const Node& each : tensors) read(each, def);
    }
  }

  const OpEntry* find_op(const Node& node, bool inplace) const;
  void read_attrs(const Node& node, Op& op) const;
  void read_call(const Node& node, Op& op, Outputs& outputs);
  /// The first present input.
  static ValueId read_any(const Op& op);
  /// An output may be in the buffer of an argument that the op says it is in, and what an in-place op makes of an argument is written.
  void check_alias(const Op& op, const Outputs& outputs, size_t slot, size_t i) const;
  /// An op with one output, that is no call.
  void read_move(const Node& node, Op& op, Outputs& outputs);
  void read_op(const Node& node);
  // What is around the ops.

  ValueId read_id_or_none(const Node& node) const { return node.is_null() ? 0 : node.integer<ValueId>(1, next() - 1); }

  void read_draws();
  void read_leaf(const Node& node);
  void read_effect(const Node& node);
  void check_gradient_of(const Node& node, ValueId gradient, ValueId of) const;
  void check_ops() const;
  bool is_entry(ValueId id) const { return entries_.contains(id); }
  bool is_argument(ValueId value, size_t function_inputs) const;
  void check_chain(const Node& node, const DetachedOutput& added) const;

  void read_gradient(const Node& node);
  /// A file without groups has one.
  static void read_groups(const Node& node, TracedGradient& gradient);
  /// Of a function whose backward pass is an error: the program has none.
  void read_failed_gradient(const Node& node, TracedGradient gradient);
  /// Leaves were read before it was known which inputs are those of the function.
  void set_gradient(const Node& node, TracedGradient gradient);
  void read_detached(const Node& node);
  void read_view(const Node& node);
  /// Gradients are wanted of the inputs and parameters that require them.
  void check_require_grad() const;
  const Node top_;
  const Scope& scope_;
  Trace trace_;
  Program& program_ = trace_.program;
  std::vector<const ProcessMesh*> meshes_;
  std::map<ValueId, Entry> entries_;
  std::vector<std::tuple<Node, uint64_t, bool>>
      draws_;  // of random ops: where, which, and whether of the generator of distributed calls
};

}  // namespace shard::program

// The reader of a program file, shared by the files that read its ops and its gradient.
#pragma once

#include <map>
#include <set>
#include <tuple>

#include "shard/program/capture/trace.h"
#include "shard/program/io/json.h"
#include "shard/program/io/json_node.h"

namespace shard::program {

class Reader {
 public:
  Reader(const Json& json, const Scope& scope) : top_(json, ""), scope_(scope) {}

  Trace run();

 private:
  struct Entry {
    JsonNode node;
    Type type;
    ValueId source;
  };

  ValueId next() const { return static_cast<ValueId>(program_.value_count()); }

  void check_format() const;
  static const ProcessMesh* read_mesh(const JsonNode& node);
  Type read_type(const JsonNode& node) const;
  // Entries. Values are numbered in the order in which they are created, and a parameter may be
  // created between ops, where the function first used it.

  ValueId read_entry(const JsonNode& node);
  void read_entries();
  Parameter find_parameter(const JsonNode& node, const Type& type) const;
  static Tensor read_constant(const JsonNode& node, const Type& type);
  void add_entries();
  // Ops.

  Operand read_operand(const JsonNode& node);
  struct Outputs {
    std::vector<std::optional<Type>> types;
    std::vector<ValueId> sources;
    std::vector<bool> writes;
    std::vector<JsonNode> nodes;
  };

  void read_output(const JsonNode& node, Outputs& outputs);
  static std::string changed(std::string_view op, const std::string& has);
  /// `read` takes the tensors of a slot with one of these names, one by one.
  template <class F>
  static void read_slots(const JsonNode& node, std::span<const SlotDef> defs, std::string_view op,
                         std::vector<SlotRange>& slots, F&& read) {
    std::vector<std::string_view> names;
    for (const SlotDef& def : defs) names.push_back(def.name);
    node.keys(names, {}, changed(op, fmt::format("{}", fmt::join(names, ", "))));
    size_t flat = 0;
    for (const SlotDef& def : defs) {
      const JsonNode slot = node[def.name];
      std::vector<JsonNode> tensors;
      if (def.kind == SlotDef::Kind::list) tensors = slot.list();
      else tensors.push_back(slot);
      slots.push_back({flat, tensors.size()});
      flat += tensors.size();
      for (const JsonNode& each : tensors) read(each, def);
    }
  }

  const OpEntry* find_op(const JsonNode& node, bool inplace) const;
  void read_attrs(const JsonNode& node, Op& op) const;
  void read_call(const JsonNode& node, Op& op, Outputs& outputs);
  /// The first input that is present.
  static ValueId read_any(const Op& op);
  /// Checks an output's alias: it may share the buffer of an argument if the op declares that
  /// alias, and the result of an in-place op writes its argument.
  void check_alias(const Op& op, const Outputs& outputs, size_t slot, size_t i) const;
  /// Reads an op that has one output and is not a call.
  void read_move(const JsonNode& node, Op& op, Outputs& outputs);
  void read_op(const JsonNode& node);
  // The parts of a program around its ops.

  ValueId read_id_or_none(const JsonNode& node) const {
    return node.is_null() ? 0 : node.integer<ValueId>(1, next() - 1);
  }

  void read_draws();
  void read_leaf(const JsonNode& node);
  void read_effect(const JsonNode& node);
  void check_gradient_of(const JsonNode& node, ValueId gradient, ValueId of) const;
  void check_ops() const;
  bool is_entry(ValueId id) const { return entries_.contains(id); }
  bool is_argument(ValueId value, size_t function_inputs) const;
  void check_chain(const JsonNode& node, const DetachedOutput& added) const;

  void read_gradient(const JsonNode& node);
  /// A file without groups has a single group.
  static void read_groups(const JsonNode& node, TracedGradient& gradient);
  /// Reads the gradient of a function whose backward pass is an error. The program has no ops for
  /// it.
  void read_failed_gradient(const JsonNode& node, TracedGradient gradient);
  /// Leaves are read before it is known which inputs are inputs of the function.
  void set_gradient(const JsonNode& node, TracedGradient gradient);
  void read_detached(const JsonNode& node);
  void read_view(const JsonNode& node);
  /// Checks that gradients are wanted exactly for the inputs and parameters that require them.
  void check_require_grad() const;
  const JsonNode top_;
  const Scope& scope_;
  Trace trace_;
  Program& program_ = trace_.program;
  std::vector<const ProcessMesh*> meshes_;
  std::map<ValueId, Entry> entries_;
  // For random ops: the place in the file, the number of the draw, and whether it is from the
  // generator of distributed calls.
  std::vector<std::tuple<JsonNode, uint64_t, bool>> draws_;
};

}  // namespace shard::program

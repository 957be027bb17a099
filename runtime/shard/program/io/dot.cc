#include "shard/program/io/dot.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "shard/program/ir/text.h"
#include "shard/reshard/plan.h"

namespace shard::program {
namespace {

constexpr const char* kMoveColour = "#d62728";
constexpr const char* kColours[] = {"#1f77b4", "#2ca02c", "#ff7f0e", "#9467bd",
                                    "#8c564b", "#17becf", "#e377c2", "#bcbd22"};

/// Quotes a text for use in a label.
std::string quoted(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (c == '\n') result += "\\n";
    else result += c;
  }
  return '"' + result + '"';
}

/// What a reshard sends: "reshard 256 B\nall_gather(tp, dim 1) 256 B".
std::string communication(const Op& op, const Type& from) {
  const auto of_plan = [&](const ReshardPlan& plan, int64_t before) {
    return fmt::format("{} {} B{}", to_string(op.kind), plan.bytes + before,
                       plan.steps.empty() ? "" : "\n" + plan.describe());
  };
  if (op.kind == Kind::relayout)
    return of_plan(*plan_relayout(from.meta, from.spec, Dims(std::span<const int64_t>(std::get<IntArray>(op.attrs[0]))),
                                  op.layout),
                   0);
  if (op.kind == Kind::reshard) return of_plan(*plan_reshard(from.meta, from.spec, op.layout), 0);
  if (op.kind == Kind::full_tensor)
    return of_plan(*plan_reshard(from.meta, from.spec, DistSpec::replicated(from.spec->mesh(), from.spec->rank())), 0);
  // If only one rank has the tensor, it first sends all of it to the others.
  const int64_t sent =
      op.source_rank < 0 ? 0 : static_cast<int64_t>(from.meta.bytes()) * (op.layout->mesh()->size() - 1);
  return of_plan(*plan_reshard(from.meta, DistSpec::replicated(op.layout->mesh(), op.layout->rank()), op.layout), sent);
}

class Drawing {
 public:
  explicit Drawing(const Program& program) : program_(program) {
    std::map<ValueId, int> members;  // by root
    for (ValueId id = 1; id < program.value_count(); ++id) ++members[program.value(id).root];
    for (const auto& [root, count] : members) {
      if (count > 1) colours_.emplace(root, kColours[colours_.size() % std::size(kColours)]);
    }
  }

  std::string run() {
    text_ =
        "digraph program {\n  node [fontname=\"monospace\", fontsize=10];\n  edge [fontname=\"monospace\", "
        "fontsize=8];\n";
    for (const Named& input : program_.inputs) enter(input, "ellipse");
    for (const Named& parameter : program_.parameters) enter(parameter, "cylinder");
    for (size_t i = 0; i < program_.ops.size(); ++i) draw(i);
    for (size_t i = 0; i < program_.outputs.size(); ++i)
      leave(fmt::format("out{}", i), program_.outputs[i].name, program_.outputs[i].value);
    for (size_t i = 0; i < program_.gradients.size(); ++i) {
      const GradientEffect& each = program_.gradients[i];
      leave(fmt::format("gradient{}", i),
            fmt::format("gradient of {}{}", number_of(each.leaf), each.gradient == 0 ? " cleared" : ""), each.gradient);
    }
    return text_ + "}\n";
  }

 private:
  void node(const std::string& name, std::string_view shape, const std::string& label, const std::string& more = "") {
    text_ += fmt::format("  {} [shape={}, label={}{}];\n", name, shape, quoted(label), more);
  }
  std::string colour_of(ValueId id) const {
    const auto found = colours_.find(program_.value(id).root);
    return found == colours_.end() ? "" : fmt::format(", color=\"{0}\", fontcolor=\"{0}\"", found->second);
  }
  /// The node that wrote the bytes last before the operand reads them.
  std::string node_of(const Operand& operand) const {
    const ValueId from = operand.state == 0 ? operand.value : operand.state;
    const int op = program_.value(from).op;
    return op < 0 ? fmt::format("v{}", from) : fmt::format("op{}", op);
  }
  void edge(const Operand& from, const std::string& to, const std::string& argument, const std::string& more) {
    const std::string label =
        fmt::format("{}{}\n{}", argument, operand_text(from, number_of), to_string(program_.value(from.value).type));
    text_ += fmt::format("  {} -> {} [label={}{}];\n", node_of(from), to, quoted(label), more);
  }

  void enter(const Named& named, std::string_view shape) {
    if (named.value != 0)
      node(fmt::format("v{}", named.value), shape,
           fmt::format("{}\n{}", named.name, value_text(program_, named.value, number_of)), colour_of(named.value));
  }

  void draw(size_t i) {
    const Op& op = program_.ops[i];
    const std::string name = fmt::format("op{}", i);
    const bool writes = std::find(op.writes.begin(), op.writes.end(), true) != op.writes.end();
    std::string label(op.name());
    for (const ValueId id : op.outputs) {
      if (id != 0) label += "\n" + value_text(program_, id, number_of);
    }
    if (!op.cause.empty()) label += "\nfor " + op.cause;
    const auto first = std::find_if(op.outputs.begin(), op.outputs.end(), [](ValueId id) { return id != 0; });
    node(name, "box", label, (first == op.outputs.end() ? "" : colour_of(*first)) + (writes ? ", style=bold" : ""));
    const bool moves = op.kind == Kind::reshard || op.kind == Kind::relayout || op.kind == Kind::distribute ||
                       op.kind == Kind::full_tensor;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      for (size_t k = op.slots[slot].first; k < op.slots[slot].first + op.slots[slot].count; ++k) {
        const Operand& input = op.inputs[k];
        if (input.value == 0) continue;
        if (moves) {
          edge(input, name, communication(op, program_.value(input.value).type) + "\n",
               fmt::format(", color=\"{0}\", fontcolor=\"{0}\"", kMoveColour));
        } else {
          edge(input, name, op.kind == Kind::call ? fmt::format("{}: ", op.entry->op->inputs[slot].name) : "",
               colour_of(input.value) + (is_written(op, input) ? ", style=bold" : ""));
        }
      }
    }
  }

  bool is_written(const Op& op, const Operand& input) const {
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0 && op.writes[o] && program_.value(op.outputs[o]).source == input.value) return true;
    }
    return false;
  }

  void leave(const std::string& name, const std::string& label, ValueId value) {
    node(name, "octagon", label);
    if (value != 0) edge({value, program_.state_of(value)}, name, "", colour_of(value));
  }

  const Program& program_;
  std::map<ValueId, const char*> colours_;  // by root, for trees with several values
  std::string text_;
};

}  // namespace

std::string to_dot(const Program& program) { return Drawing(program).run(); }

}  // namespace shard::program

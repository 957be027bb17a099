// Programs as text for people.
#include <fmt/format.h>

#include "core/op_def.h"
#include "program/attr_text.h"
#include "program/program.h"

namespace shard::program {
namespace {

std::string value_name(ValueId id) { return id == 0 ? "none" : fmt::format("%{}", id); }

std::string operand_text(const Operand& operand) {
  return operand.state == 0 ? value_name(operand.value) : fmt::format("{}@%{}", value_name(operand.value), operand.state);
}

std::string value_text(const Program& program, ValueId id) {
  const Value& value = program.value(id);
  return fmt::format("{}: {}{}", value_name(id), to_string(value.type), value.source == 0 ? "" : fmt::format(" in %{}", value.root));
}

/// "x: %3, y: [%4, %5]"
std::string inputs_text(const Op& op) {
  std::string text;
  const auto add = [&](std::string_view part) { text += fmt::format("{}{}", text.empty() ? "" : ", ", part); };
  for (size_t slot = 0; slot < op.slots.size(); ++slot) {
    const SlotRange& range = op.slots[slot];
    const SlotDef* const def = op.kind == Kind::call ? &op.entry->op->inputs[slot] : nullptr;
    std::string tensors;
    for (size_t i = range.first; i < range.first + range.count; ++i) tensors += (i == range.first ? "" : ", ") + operand_text(op.inputs[i]);
    if (def != nullptr && def->kind == SlotDef::Kind::list) tensors = "[" + tensors + "]";
    add(def == nullptr ? tensors : fmt::format("{}: {}", def->name, tensors));
  }
  for (size_t i = 0; i < op.attrs.size(); ++i) {
    if (op.kind == Kind::call) add(fmt::format("{}={}", op.entry->op->attrs[i], attr_text(op.attrs[i])));
    else add(attr_text(op.attrs[i]));
  }
  if (op.layout != nullptr) add(fmt::format("layout={}", op.layout->text()));
  if (op.source_rank >= 0) add(fmt::format("from_rank={}", op.source_rank));
  return text;
}

std::string op_text(const Program& program, const Op& op) {
  std::string outputs;
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    if (!outputs.empty()) outputs += ", ";
    outputs += op.outputs[o] == 0 ? "none" : value_text(program, op.outputs[o]) + (op.writes[o] ? " written" : "");
  }
  return fmt::format("  {} = {}({}){}{}\n", outputs, op.name(), inputs_text(op), op.joins ? " with the one before" : "", op.cause.empty() ? "" : "  # for " + op.cause);
}

}  // namespace

std::string to_text(const Program& program) {
  std::string text = "program(";
  const auto list = [&](const std::vector<Named>& names, const char* what) {
    for (const Named& each : names) {
      text += fmt::format("\n    {} {} {}", what, each.name, each.value == 0 ? "none" : value_text(program, each.value));
    }
  };
  list(program.inputs, "input");
  list(program.parameters, "parameter");
  text += ")\n";
  for (const Op& op : program.ops) text += op_text(program, op);
  for (const Named& output : program.outputs) text += fmt::format("  return {} {}\n", output.name, value_name(output.value));
  for (const GradientEffect& effect : program.gradients) {
    text += fmt::format("  gradient of %{} {} {}\n", effect.leaf, effect.gradient == 0 ? "cleared" : "is", effect.gradient == 0 ? "" : value_name(effect.gradient));
  }
  return text;
}

}  // namespace shard::program

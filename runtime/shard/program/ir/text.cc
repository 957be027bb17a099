// Programs as text for people.
#include <fmt/format.h>

#include "shard/core/op_def.h"
#include "shard/program/ir/attr_text.h"
#include "shard/program/ir/text.h"

namespace shard::program {

std::string number_of(ValueId id) { return id == 0 ? "none" : fmt::format("%{}", id); }

std::string operand_text(const Operand& operand, const ValueNames& name) {
  return operand.state == 0 ? name(operand.value) : fmt::format("{}@{}", name(operand.value), name(operand.state));
}

std::string value_text(const Program& program, ValueId id, const ValueNames& name) {
  const Value& value = program.value(id);
  return fmt::format("{}: {}{}", name(id), to_string(value.type), value.source == 0 ? "" : " in " + name(value.root));
}

namespace {

/// The inputs of an op: "x: %3, y: [%4, %5]".
std::string inputs_text(const Op& op, const ValueNames& name) {
  std::string text;
  const auto add = [&](std::string_view part) { text += fmt::format("{}{}", text.empty() ? "" : ", ", part); };
  for (size_t slot = 0; slot < op.slots.size(); ++slot) {
    const SlotRange& range = op.slots[slot];
    const SlotDef* const def = op.kind == Kind::call ? &op.entry->op->inputs[slot] : nullptr;
    std::string tensors;
    for (size_t i = range.first; i < range.first + range.count; ++i)
      tensors += (i == range.first ? "" : ", ") + operand_text(op.inputs[i], name);
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

}  // namespace

std::string op_text(const Program& program, const Op& op, const ValueNames& name) {
  std::string outputs;
  for (size_t o = 0; o < op.outputs.size(); ++o) {
    if (!outputs.empty()) outputs += ", ";
    outputs +=
        op.outputs[o] == 0 ? "none" : value_text(program, op.outputs[o], name) + (op.writes[o] ? " written" : "");
  }
  return fmt::format("{} = {}({}){}{}", outputs, op.name(), inputs_text(op, name),
                     op.joins ? " with the one before" : "", op.cause.empty() ? "" : "  # for " + op.cause);
}

std::string to_text(const Program& program) {
  std::string text = "program(";
  const auto list = [&](const std::vector<Named>& names, const char* what) {
    for (const Named& each : names) {
      text += fmt::format("\n    {} {} {}", what, each.name,
                          each.value == 0 ? "none" : value_text(program, each.value, number_of));
    }
  };
  list(program.inputs, "input");
  list(program.parameters, "parameter");
  text += ")\n";
  for (const Op& op : program.ops) text += fmt::format("  {}\n", op_text(program, op, number_of));
  for (const Named& output : program.outputs)
    text += fmt::format("  return {} {}\n", output.name, number_of(output.value));
  for (const GradientEffect& effect : program.gradients) {
    text += fmt::format("  gradient of %{} {} {}\n", effect.leaf, effect.gradient == 0 ? "cleared" : "is",
                        effect.gradient == 0 ? "" : number_of(effect.gradient));
  }
  return text;
}

}  // namespace shard::program

#include "shard/program/ir/rewrite.h"

#include "shard/core/error.h"

namespace shard::program {

ValueId Rewriter::operator()(ValueId id) const {
  if (id == 0) return 0;
  if (map_[id] == 0) fail(ErrorCode::internal, "%{} is not defined in the part of the program that uses it", id);
  return map_[id];
}

void Rewriter::enter(const Named& value, std::vector<Named>& list) {
  if (value.value == 0) {
    list.push_back(value);
    return;
  }
  if (has(value.value)) {  // the same tensor again
    list.push_back({value.name, map_[value.value]});
    return;
  }
  // If the source of an alias is not entered, the alias is the first value of its buffer here.
  ValueId source = from_.value(value.value).source;
  while (source != 0 && !has(source)) source = from_.value(source).source;
  map_[value.value] = to_.add_value(from_.value(value.value).type, source == 0 ? 0 : map_[source]);
  list.push_back({value.name, map_[value.value]});
}

void Rewriter::enter_all() {
  for (const Named& input : from_.inputs) enter(input, to_.inputs);
  for (const Named& parameter : from_.parameters) enter(parameter, to_.parameters);
}

void Rewriter::leave_all() {
  for (const Named& output : from_.outputs) to_.outputs.push_back({output.name, (*this)(output.value)});
  for (const GradientEffect& effect : from_.gradients)
    to_.gradients.push_back({(*this)(effect.leaf), (*this)(effect.gradient)});
  to_.world_draws = from_.world_draws;
  to_.plain_draws = from_.plain_draws;
  to_.world_before = from_.world_before;
  to_.plain_before = from_.plain_before;
}

void Rewriter::copy(size_t i) {
  const Op& op = from_.ops[i];
  Op copy = op;
  copy.outputs.clear();
  std::vector<ValueId> sources;
  for (const ValueId id : op.outputs) sources.push_back(id == 0 ? 0 : from_.value(id).source);
  copy_as(i, std::move(copy), std::move(sources), op.writes);
}

/// `sources` and the inputs of `op` are values of `from`.
void Rewriter::copy_as(size_t i, Op op, std::vector<ValueId> sources, std::vector<bool> writes) {
  for (Operand& input : op.inputs) input.value = (*this)(input.value);
  op.joins = false;
  for (ValueId& source : sources) source = (*this)(source);
  std::vector<std::optional<Type>> types;
  for (const ValueId id : from_.ops[i].outputs)
    types.push_back(id == 0 ? std::nullopt : std::optional(from_.value(id).type));
  for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
    if (op.leaves_out(slot)) types[op.output_slots[slot].first].reset();
  }
  const int number = to_.add_op(std::move(op), types, sources, std::move(writes));
  const std::vector<ValueId>& outputs = to_.ops[static_cast<size_t>(number)].outputs;
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o] != 0) map_[from_.ops[i].outputs[o]] = outputs[o];
  }
}

ValueId add_single(Program& program, Op op, const Type& type, ValueId source, bool writes) {
  if (op.slots.empty()) {
    for (size_t i = 0; i < op.inputs.size(); ++i) op.slots.push_back({i, 1});
  }
  op.output_slots = {{0, 1}};
  const std::optional<Type> given = type;
  const int number = program.add_op(std::move(op), {&given, 1}, {&source, 1}, {writes});
  return program.ops[static_cast<size_t>(number)].outputs[0];
}

Op make_alias(ValueId value, const Type& type) {
  Op op;
  op.kind = Kind::alias;
  op.inputs = {{value, 0}};
  op.slots = {{0, 1}};
  op.output_slots = {{0, 1}};
  op.attrs = {IntArray(type.meta.dims), type.meta.dtype};
  op.layout = type.spec;
  return op;
}

ValueId add_alias(Program& program, ValueId value, const Type& type) {
  return program.value(value).type == type ? value : add_single(program, make_alias(value, type), type, value);
}

ValueId add_clone(Program& program, ValueId value) {
  Op op;
  op.kind = Kind::clone;
  op.inputs = {{value, 0}};
  const Type type = program.value(value).type;
  op.attrs = {type.device};
  return add_single(program, std::move(op), type);
}

}  // namespace shard::program

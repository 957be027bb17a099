#include "shard/program/capture/captured_entry.h"

#include <algorithm>

#include "shard/program/ir/alias.h"

namespace shard::program {

BackwardRun& Entry::backward(size_t step, const std::vector<bool>& given) {
  GradientStep& of = steps[step];
  if (std::find(given.begin(), given.end(), false) == given.end()) return of.all;
  if (const auto found = of.some.find(given); found != of.some.end()) return found->second;
  constexpr size_t kKept = 16;
  if (of.some.size() == kKept) of.some.clear();
  BackwardPart part = narrow(*split, *trace.gradient, of.all.part, given);
  part.program.verify();
  part.program = source->improved(std::move(part.program));
  return of.some.emplace(given, BackwardRun{std::move(part)}).first->second;
}

void Entry::index() {
  const Program& joint = trace.program;
  argument_of.assign(joint.value_count(), 0);
  const size_t inputs = trace.require_grad.size();
  for (size_t i = 0; i < inputs; ++i) argument_of[joint.inputs[i].value] = 1 + i;
  for (size_t i = 0; i < joint.parameters.size(); ++i) argument_of[joint.parameters[i].value] = 1 + inputs + i;
  argument_of[0] = 0;
  read = read_trees(joint);
  for (const size_t output : trace.gradient ? trace.gradient->outputs : std::vector<size_t>()) {
    const ValueId value = joint.outputs[output].value;
    if (value != 0 && argument_of[handle_of(joint, value)] != 0) written.push_back(handle_of(joint, value));
  }
  std::vector<size_t> leaves(joint.value_count(), 0);
  for (size_t i = 0; i < trace.leaves.size(); ++i) leaves[trace.leaves[i].value] = i;
  for (const GradientEffect& effect : joint.gradients) leaf_of.push_back(leaves[effect.leaf]);
}

Tensor Entry::argument(ValueId id, const Arguments& arguments) const {
  const size_t number = argument_of[id];
  if (number == 0) return {};
  const size_t inputs = arguments.inputs.size();
  return number <= inputs ? arguments.inputs[number - 1] : arguments.parameters[number - 1 - inputs];
}

std::vector<Tensor> parameters_of(const Entry& entry, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> parameters;
  parameters.reserve(entry.trace.parameters.size());
  for (const Parameter& each : entry.trace.parameters) {
    Tensor leaf = each.leaf;
    if (const auto input = static_cast<size_t>(each.leaf_input); each.leaf_input >= 0)
      leaf = input < inputs.size() ? inputs[input] : Tensor();
    parameters.push_back(leaf.defined() ? leaf.grad() : each.tensor);
  }
  return parameters;
}

const Tensor& tensor_of(const Leaf& leaf, const std::vector<Tensor>& inputs) {
  return leaf.tensor.defined() ? leaf.tensor : inputs[leaf.input];
}

bool fits(const Entry& entry, const Arguments& arguments) {
  for (const Leaf& leaf : entry.trace.leaves) {
    if (tensor_of(leaf, arguments.inputs).grad().defined() != leaf.had_gradient) return false;
  }
  return has_types(entry.parameters, arguments.parameters) && has_sharing(entry.sharing, arguments);
}

}  // namespace shard::program

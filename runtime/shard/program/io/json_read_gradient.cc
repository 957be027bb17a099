// Reads the parts of a program beside its ops: leaves, the gradient, and outputs that are views.
#include <algorithm>

#include "shard/autograd/leaf.h"
#include "shard/program/capture/parts.h"
#include "shard/program/io/json_reader.h"

namespace shard::program {

void Reader::read_leaf(const JsonNode& node) {
  Leaf leaf;
  ValueId entry = 0;
  if (node.has("parameter")) {
    node.keys({"parameter", "value", "had_gradient"});
    const JsonNode name = node["parameter"];
    const auto found = std::find_if(program_.parameters.begin(), program_.parameters.end(),
                                    [&](const Named& each) { return each.name == name.text(); });
    if (found == program_.parameters.end()) name.expected("the name of a parameter");
    leaf.tensor = trace_.parameters[static_cast<size_t>(found - program_.parameters.begin())].tensor;
    if (!leaf.tensor.defined()) name.expected("a parameter that is not a gradient");
    entry = found->value;
  } else {
    node.keys({"input", "value", "had_gradient"});
    leaf.input = node["input"].integer<size_t>();
    if (leaf.input >= program_.inputs.size() || program_.inputs[leaf.input].value == 0)
      node["input"].expected("the number of an existing input");
    entry = program_.inputs[leaf.input].value;
  }
  leaf.value = node["value"].integer<ValueId>(1, next() - 1);
  if (program_.value(leaf.value).root != program_.value(entry).root)
    node["value"].expected(fmt::format("%{} or a value in its buffer", entry));
  leaf.had_gradient = node["had_gradient"].boolean();
  trace_.leaves.push_back(std::move(leaf));
}

void Reader::read_effect(const JsonNode& node) {
  node.keys({"leaf", "gradient"});
  const GradientEffect effect{node["leaf"].integer<ValueId>(), read_id_or_none(node["gradient"])};
  if (std::none_of(trace_.leaves.begin(), trace_.leaves.end(),
                   [&](const Leaf& leaf) { return leaf.value == effect.leaf; }))
    node["leaf"].expected("the value of one of /leaves");
  if (effect.gradient != 0) check_gradient_of(node["gradient"], effect.gradient, effect.leaf);
  program_.gradients.push_back(effect);
}

void Reader::check_gradient_of(const JsonNode& node, ValueId gradient, ValueId of) const {
  const Type& type = program_.value(of).type;
  const Type& has = program_.value(gradient).type;
  if (has.meta == type.meta && (has.spec == nullptr) == (type.spec == nullptr)) return;
  node.refuse("expected a gradient of %{}, {}, but %{} is {}", of, to_string(type), gradient, to_string(has));
}

void Reader::read_gradient(const JsonNode& node) {
  node.keys({"forward_ops", "world_draws", "plain_draws", "function_inputs", "function_outputs", "outputs", "wanted"},
            {"error", "reaches", "output_groups", "wanted_groups"});
  TracedGradient gradient;
  gradient.forward_ops = node["forward_ops"].integer<size_t>(0, program_.ops.size());
  gradient.world_draws = node["world_draws"].integer<uint64_t>(0, program_.world_draws);
  gradient.plain_draws = node["plain_draws"].integer<uint64_t>(0, program_.plain_draws);
  gradient.function_inputs = node["function_inputs"].integer<size_t>(0, program_.inputs.size());
  gradient.function_outputs = node["function_outputs"].integer<size_t>(0, program_.outputs.size());
  const std::vector<JsonNode> outputs = node["outputs"].list(), wanted = node["wanted"].list();
  if (node.has("error")) return read_failed_gradient(node, std::move(gradient));
  if (outputs.size() != program_.inputs.size() - gradient.function_inputs) {
    node["outputs"].refuse("expected as many as /inputs has gradients, {}",
                           program_.inputs.size() - gradient.function_inputs);
  }
  if (wanted.size() != program_.outputs.size() - gradient.function_outputs) {
    node["wanted"].refuse("expected as many as /outputs has gradients, {}",
                          program_.outputs.size() - gradient.function_outputs);
  }
  if (outputs.empty()) node["outputs"].expected("at least one output");
  for (size_t i = 0; i < outputs.size(); ++i) {
    gradient.outputs.push_back(outputs[i].integer<size_t>(0, gradient.function_outputs));
    const bool again = std::count(gradient.outputs.begin(), gradient.outputs.end(), gradient.outputs.back()) != 1;
    const ValueId output =
        gradient.outputs.back() < gradient.function_outputs ? program_.outputs[gradient.outputs.back()].value : 0;
    const Named& given = program_.inputs[gradient.function_inputs + i];
    if (output == 0 || given.value == 0 || again) outputs[i].expected("the number of an output with a gradient, once");
    Type type = program_.value(output).type;
    if (type.spec != nullptr) type.spec = autograd::gradient_layout(type.spec);
    const Type& has = program_.value(given.value).type;
    // A rank outside of the mesh holds nothing of either, on whatever device.
    const bool same_device = type.spec != nullptr || has.device == type.device;
    if (!(has.meta == type.meta) || has.spec != type.spec || !same_device)
      outputs[i].refuse("expected a gradient {}, but {} is {}", to_string(type), given.name, to_string(has));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    gradient.wanted.push_back(wanted[i].integer<ValueId>());
    if (!is_argument(gradient.wanted.back(), gradient.function_inputs))
      wanted[i].expected("the value of an input or parameter");
    const ValueId given = program_.outputs[gradient.function_outputs + i].value;
    if (given != 0) check_gradient_of(wanted[i], given, gradient.wanted.back());
  }
  read_groups(node, gradient);
  if (node.has("reaches")) {
    for (const JsonNode& output : node["reaches"].list()) {
      std::vector<size_t>& numbers = gradient.reaches.emplace_back();
      for (const JsonNode& number : output.list()) {
        if (wanted.empty()) number.expected("no number, because /gradient/wanted is empty");
        numbers.push_back(number.integer<size_t>(0, wanted.size() - 1));
      }
    }
    if (gradient.reaches.size() != outputs.size())
      node["reaches"].expected(fmt::format("a list for each of the {} outputs", outputs.size()));
  }
  set_gradient(node, std::move(gradient));
  node.attempt([&] {
    const Split split = program::split(trace_);
    split.forward.verify();
    split.backward.verify();
    for (const BackwardPart& part : parts_of(split, *trace_.gradient)) part.program.verify();
  });
}

void Reader::read_groups(const JsonNode& node, TracedGradient& gradient) {
  gradient.output_groups.assign(gradient.outputs.size(), 0);
  gradient.wanted_groups.assign(gradient.wanted.size(), 0);
  const auto read = [&](const char* key, std::vector<size_t>& groups, size_t count) {
    if (!node.has(key)) return;
    const std::vector<JsonNode> numbers = node[key].list();
    if (numbers.size() != groups.size()) node[key].refuse("expected {} numbers of groups", groups.size());
    for (size_t i = 0; i < numbers.size(); ++i) groups[i] = numbers[i].integer<size_t>(0, count - 1);
  };
  read("output_groups", gradient.output_groups, gradient.outputs.size());
  for (size_t group = 0; group < group_count(gradient); ++group) {
    const std::vector<size_t>& groups = gradient.output_groups;
    if (std::find(groups.begin(), groups.end(), group) == groups.end())
      node["output_groups"].refuse("expected an output of each group, but {} has none", group);
  }
  read("wanted_groups", gradient.wanted_groups, group_count(gradient));
}

void Reader::read_failed_gradient(const JsonNode& node, TracedGradient gradient) {
  gradient.error = node["error"].text();
  if (gradient.error.empty()) node["error"].expected("what is wrong");
  if (gradient.function_inputs != program_.inputs.size())
    node["function_inputs"].expected(fmt::format("{}, all of /inputs", program_.inputs.size()));
  if (gradient.function_outputs != program_.outputs.size())
    node["function_outputs"].expected(fmt::format("{}, all of /outputs", program_.outputs.size()));
  for (const JsonNode& output : node["outputs"].list()) {
    gradient.outputs.push_back(output.integer<size_t>());
    if (gradient.outputs.back() >= program_.outputs.size() || program_.outputs[gradient.outputs.back()].value == 0)
      output.expected("the number of an existing output");
  }
  for (const JsonNode& wanted : node["wanted"].list()) {
    gradient.wanted.push_back(wanted.integer<ValueId>());
    if (!is_argument(gradient.wanted.back(), gradient.function_inputs))
      wanted.expected("the value of an input or parameter");
  }
  for (const char* key : {"reaches", "output_groups", "wanted_groups"}) {
    if (node.has(key)) node[key].refuse("a gradient that is an error has no {}", key);
  }
  read_groups(node, gradient);
  set_gradient(node, std::move(gradient));
}

void Reader::set_gradient(const JsonNode& node, TracedGradient gradient) {
  const size_t inputs = gradient.function_inputs;
  for (const Leaf& leaf : trace_.leaves) {
    if (!leaf.tensor.defined() && leaf.input >= inputs)
      node["function_inputs"].refuse("a leaf is input {}, but the function has {}", leaf.input, inputs);
  }
  for (const Parameter& each : trace_.parameters) {
    if (each.leaf_input >= static_cast<int>(inputs))
      node["function_inputs"].refuse("a parameter is the gradient of input {}, but the function has {}",
                                     each.leaf_input, inputs);
  }
  trace_.gradient = std::move(gradient);
  trace_.require_grad.resize(inputs);
}

void Reader::read_detached(const JsonNode& node) {
  node.keys({"output", "source", "stale", "op", "argument", "from", "to"});
  const size_t outputs = trace_.gradient ? trace_.gradient->function_outputs : program_.outputs.size();
  DetachedOutput each{node["output"].integer<size_t>(),
                      node["source"].integer<ValueId>(1, next() - 1),
                      node["stale"].boolean(),
                      node["op"].text(),
                      node["argument"].text(),
                      node["from"].text(),
                      node["to"].text()};
  if (each.output >= outputs || program_.outputs[each.output].value == 0)
    node["output"].expected("the number of an existing output");
  const auto is_source = [&](const Named& output) { return output.value == each.source; };
  if (!is_argument(each.source, trace_.gradient ? trace_.gradient->function_inputs : program_.inputs.size()) &&
      std::none_of(program_.outputs.begin(), program_.outputs.begin() + static_cast<std::ptrdiff_t>(outputs),
                   is_source)) {
    node["source"].expected("the value of an input, parameter or output");
  }
  check_chain(node, each);
  trace_.detached.push_back(std::move(each));
}

/// The copies of a program and their sources form chains of buffers, which must not have cycles.
void Reader::check_chain(const JsonNode& node, const DetachedOutput& added) const {
  const auto root = [&](ValueId value) { return program_.value(value).root; };
  const ValueId first = root(program_.outputs[added.output].value);
  const auto copy_in = [&](ValueId buffer) {
    return std::find_if(trace_.detached.begin(), trace_.detached.end(), [&](const DetachedOutput& each) {
      return root(program_.outputs[each.output].value) == buffer;
    });
  };
  if (copy_in(first) != trace_.detached.end()) node["output"].expected("an output in another buffer than those before");
  ValueId source = root(added.source);
  for (auto copy = copy_in(source); source != first && copy != trace_.detached.end(); copy = copy_in(source))
    source = root(copy->source);
  if (source == first) node["source"].expected("a buffer that is not a copy of this output");
}

/// True for an input of the function or a parameter, but not for a gradient that the backward pass
/// gets.
bool Reader::is_argument(ValueId value, size_t function_inputs) const {
  const auto is_value = [&](const Named& named) { return named.value == value; };
  return std::any_of(program_.inputs.begin(), program_.inputs.begin() + static_cast<std::ptrdiff_t>(function_inputs),
                     is_value) ||
         std::any_of(program_.parameters.begin(), program_.parameters.end(), is_value);
}

void Reader::read_view(const JsonNode& node) {
  node.keys({"output"}, {"source", "other"});
  const size_t outputs = trace_.gradient ? trace_.gradient->function_outputs : program_.outputs.size();
  const auto output_of = [&](const JsonNode& number) {
    const auto output = number.integer<size_t>();
    if (output >= outputs || program_.outputs[output].value == 0) number.expected("the number of an existing output");
    return output;
  };
  ViewOutput each{.output = output_of(node["output"])};
  if (node.has("source") == node.has("other")) node.expected("either a source or another output");
  if (node.has("other")) each.other = output_of(node["other"]);
  else each.source = node["source"].integer<ValueId>(1, next() - 1);
  if (each.source != 0 && !is_entry(each.source)) node["source"].expected("the value of an input or parameter");
  const ValueId of = each.source != 0 ? each.source : program_.outputs[each.other].value;
  if (program_.value(of).root != program_.value(program_.outputs[each.output].value).root)
    node.expected("an output in the buffer of what it is a view of");
  trace_.views.push_back(each);
}

void Reader::check_require_grad() const {
  if (!trace_.gradient) return;
  const std::vector<ValueId>& wanted = trace_.gradient->wanted;
  const auto check = [&](const Named& named, bool requires_grad) {
    if (named.value == 0 || requires_grad == (std::find(wanted.begin(), wanted.end(), named.value) != wanted.end()))
      return;
    refuse_at("/gradient/wanted", "expected the inputs and parameters with requires_grad, in which '{}' differs",
              named.name);
  };
  for (size_t i = 0; i < trace_.require_grad.size(); ++i) check(program_.inputs[i], trace_.require_grad[i]);
  for (size_t i = 0; i < trace_.parameters.size(); ++i)
    check(program_.parameters[i], trace_.parameters[i].requires_grad);
}

}  // namespace shard::program

#include "shard/program/capture/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "shard/core/error.h"
#include "shard/program/ir/rewrite.h"

namespace shard::program {

ValueId source_of(const Program& program, ValueId value) {
  while (program.value(value).source != 0 && program.value(value).op >= 0) value = program.value(value).source;
  return program.value(value).op < 0 ? value : 0;
}

namespace {

class Splitter {
 public:
  explicit Splitter(const Trace& trace)
      : joint_(trace.program), gradient_(*trace.gradient), forward_(joint_, result_.forward),
        backward_(joint_, result_.backward) {}

  Split run() {
    find_reads();
    find_writes();
    for (size_t i = 0; i < gradient_.function_inputs; ++i) forward_.enter(joint_.inputs[i], result_.forward.inputs);
    for (const Named& parameter : joint_.parameters) forward_.enter(parameter, result_.forward.parameters);
    for (size_t i = 0; i < gradient_.forward_ops; ++i) forward_.copy(i);
    for (const Named& output : function_outputs())
      result_.forward.outputs.push_back({output.name, forward_(output.value)});
    result_.outputs = gradient_.function_outputs;
    for (const GradientEffect& effect : joint_.gradients)
      result_.forward.gradients.push_back({forward_(effect.leaf), forward_(effect.gradient)});
    for (const auto& [value, data] : reads_) pass_on(value);
    for (const Named& given : given_gradients()) backward_.enter(given, result_.backward.inputs);
    for (const auto& [value, data] : reads_) derive(value);
    for (size_t i = gradient_.forward_ops; i < joint_.ops.size(); ++i) backward_.copy(i);
    for (const Named& gradient : wanted_gradients())
      result_.backward.outputs.push_back({gradient.name, backward_(gradient.value)});
    divide_draws();
    return std::move(result_);
  }

 private:
  std::span<const Named> given_gradients() const { return std::span(joint_.inputs).subspan(gradient_.function_inputs); }
  std::span<const Named> function_outputs() const {
    return std::span(joint_.outputs).first(gradient_.function_outputs);
  }
  std::span<const Named> wanted_gradients() const {
    return std::span(joint_.outputs).subspan(gradient_.function_outputs);
  }

  bool is_before(ValueId id) const {
    const auto is_given = [&](const Named& given) { return given.value == id; };
    const std::span<const Named> given = given_gradients();
    return joint_.value(id).op < static_cast<int>(gradient_.forward_ops) &&
           std::none_of(given.begin(), given.end(), is_given);
  }

  void read(ValueId id, bool data) {
    if (id == 0 || !is_before(id)) return;
    bool& reads = reads_[id];
    reads = reads || data;
    bool& tree = tree_read_[joint_.value(id).root];
    tree = tree || data;
  }

  /// Finds what backward reads of forward, and whether it needs the bytes.
  void find_reads() {
    for (size_t i = gradient_.forward_ops; i < joint_.ops.size(); ++i) {
      const Op& op = joint_.ops[i];
      for (size_t k = 0; k < op.inputs.size(); ++k) read(op.inputs[k].value, op.reads_bytes(k));
    }
    for (const Named& gradient : wanted_gradients()) read(gradient.value, true);
  }

  void find_writes() {
    for (size_t i = 0; i < joint_.ops.size(); ++i) {
      const Op& op = joint_.ops[i];
      for (size_t o = 0; o < op.outputs.size(); ++o) {
        if (op.outputs[o] != 0 && op.writes[o])
          (i < gradient_.forward_ops ? forward_writes_ : backward_writes_)[joint_.value(op.outputs[o]).root] = true;
      }
    }
    for (const Named& output : function_outputs()) {
      if (output.value != 0) seen_[joint_.value(output.value).root] = true;
    }
  }

  bool has(const std::map<ValueId, bool>& set, ValueId root) const { return set.contains(root); }

  /// The value from which backward derives a value: the value itself, or the owner of its bytes.
  ValueId holder(ValueId id) const {
    if (!tree_read_.at(joint_.value(id).root)) return id;
    const ValueId source = source_of(joint_, id);
    return source != 0 ? source : joint_.value(id).root;
  }

  /// Makes forward return the holder of a value's bytes, once, and backward take it as an input.
  void pass_on(ValueId id) {
    const ValueId root = joint_.value(id).root;
    const ValueId held = holder(id);
    if (backward_.has(held)) return;
    Residual residual{.value = held};
    if (!tree_read_.at(root)) {
      residual.held = Held::shape_only;
    } else if (source_of(joint_, id) == 0) {
      residual.visible = has(seen_, root);
      add_output(residual, forward_(held));
    } else if (!has(forward_writes_, root)) {
      backward_.enter({name_of(held), held}, result_.backward.parameters);
      result_.sources.push_back(held);
      return;
    } else {
      check_written_once(root);
      residual.held = Held::copied;
      residual.source = held;
      add_output(residual, add_clone(result_.forward, forward_(held)));
    }
    const ValueId entered = result_.backward.add_value(joint_.value(held).type);
    backward_.map(held, entered);
    result_.backward.inputs.push_back({fmt::format("residual_{}", result_.residuals.size()), entered});
    result_.residuals.push_back(residual);
  }

  void add_output(Residual& residual, ValueId value) {
    residual.output = static_cast<int>(result_.forward.outputs.size());
    result_.forward.outputs.push_back({fmt::format("residual_{}", result_.residuals.size()), value});
  }

  /// Throws if backward writes the tree as well: values that share a buffer would no longer share
  /// it as copies.
  void check_written_once(ValueId root) const {
    if (!has(backward_writes_, root)) return;
    fail(ErrorCode::capture,
         "the captured function writes '{}' in both its forward and its backward pass, which would overwrite the value "
         "of another run; write a copy of it in one of them (assign(x))",
         name_of(root));
  }

  /// Derives the other members of a tree from the member that was passed on.
  void derive(ValueId id) {
    if (backward_.has(id)) return;
    backward_.map(id, add_alias(result_.backward, backward_(holder(id)), joint_.value(id).type));
  }

  /// Keys that backward draws for the first time come after those of forward.
  void divide_draws() {
    result_.forward.plain_draws = gradient_.plain_draws;
    result_.forward.world_draws = gradient_.world_draws;
    result_.backward.plain_before = gradient_.plain_draws;
    result_.backward.world_before = gradient_.world_draws;
    result_.backward.plain_draws = joint_.plain_draws - gradient_.plain_draws;
    result_.backward.world_draws = joint_.world_draws - gradient_.world_draws;
  }

  std::string name_of(ValueId id) const {
    for (const std::vector<Named>* list : {&joint_.inputs, &joint_.parameters}) {
      for (const Named& each : *list) {
        if (each.value == id) return each.name;
      }
    }
    return fmt::format("%{}", id);
  }

  const Program& joint_;
  const TracedGradient& gradient_;
  Split result_;
  Rewriter forward_, backward_;
  std::map<ValueId, bool> reads_;      // by value: whether its bytes are read
  std::map<ValueId, bool> tree_read_;  // by root: whether the bytes of any member are read
  std::map<ValueId, bool> forward_writes_, backward_writes_, seen_;  // by root
};

}  // namespace

size_t group_count(const TracedGradient& gradient) {
  const std::vector<size_t>& groups = gradient.output_groups;
  return groups.empty() ? 0 : *std::max_element(groups.begin(), groups.end()) + 1;
}

Split split(const Trace& trace) {
  if (!trace.gradient) fail(ErrorCode::internal, "[split] the program has no backward pass");
  return Splitter(trace).run();
}

}  // namespace shard::program

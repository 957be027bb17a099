#include "shard/program/ir/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "shard/core/grad_mask.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/ir/infer.h"
#include "shard/program/ir/loops.h"
#include "shard/reshard/plan.h"

namespace shard::program {

std::string to_string(const Type& type) {
  if (type.spec == nullptr)
    return shard::to_string(type.meta) + (type.device == kCpu ? "" : " on " + shard::to_string(type.device));
  return fmt::format("{} {}", shard::to_string(type.meta), type.spec->text());
}

Type type_of(const TensorImpl& tensor) {
  return {tensor.meta(), tensor.kind() == TensorKind::dist ? static_cast<const DistTensorImpl&>(tensor).spec : nullptr,
          tensor.value.device()};
}

std::string_view to_string(Kind kind) {
  constexpr std::string_view names[] = {"call",       "reshard",     "relayout", "copy",
                                        "distribute", "full_tensor", "clone",    "alias"};
  return names[static_cast<size_t>(kind)];
}

std::string_view Op::name() const {
  if (kind != Kind::call) return to_string(kind);
  return inplace ? entry->op->inplace_name : entry->op->name;
}

bool Op::reads_bytes(size_t i) const {
  if (inputs[i].value == 0) return false;
  if (kind != Kind::call || entry->op->no_need_buffer == 0) return true;
  const auto slot = std::find_if(slots.begin(), slots.end(),
                                 [&](const SlotRange& each) { return i >= each.first && i < each.first + each.count; });
  return (entry->op->no_need_buffer >> (slot - slots.begin()) & 1u) == 0;
}

bool Op::leaves_out(size_t slot) const {
  return may_leave_out(slot) && !GradMask(std::get<int64_t>(attrs.back()))[slot];
}

ValueId Program::add_value(const Type& type, ValueId source) {
  const auto id = static_cast<ValueId>(values_.size());
  values_.push_back({.type = type, .op = -1, .source = source, .root = source == 0 ? id : values_[source].root});
  states_.push_back(0);
  return id;
}

int Program::add_op(Op op, std::span<const std::optional<Type>> outputs, std::span<const ValueId> sources,
                    std::vector<bool> writes) {
  const auto number = static_cast<int>(ops.size());
  for (Operand& input : op.inputs) input.state = input.value == 0 ? 0 : state_of(input.value);
  op.writes = std::move(writes);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) {
      op.outputs.push_back(0);
      continue;
    }
    const ValueId id = add_value(*outputs[i], sources[i]);
    values_[id].op = number;
    op.outputs.push_back(id);
  }
  // A call writes all outputs at once, so a tree has one state after it.
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    if (op.writes[i]) states_[values_[op.outputs[i]].root] = op.outputs[i];
  }
  ops.push_back(std::move(op));
  return number;
}

ValueId Program::state_of(ValueId value) const { return states_[values_[value].root]; }

std::vector<bool> read_trees(const Program& program) {
  std::vector<bool> read(program.value_count(), false);
  for (const Op& op : program.ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.reads_bytes(i)) read[program.value(op.inputs[i].value).root] = true;
    }
  }
  return read;
}

namespace {

/// Collects what is wrong with a program.
class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program), made_(program.value_count(), false), states_(program.value_count(), 0) {}

  void run() {
    for (const Named& input : program_.inputs) enter(input, "input");
    for (const Named& parameter : program_.parameters) enter(parameter, "parameter");
    for (size_t i = 0; i < program_.ops.size(); ++i) check(i);
    for (size_t i = 0; i < program_.outputs.size(); ++i) {
      const Named& output = program_.outputs[i];
      if (output.value != 0 && !is_made(output.value))
        problem("output '{}' is %{}, which no op computes", output.name, output.value);
    }
    for (const GradientEffect& effect : program_.gradients) {
      if (effect.gradient != 0 && !is_made(effect.gradient))
        problem("the gradient of %{} is %{}, which no op computes", effect.leaf, effect.gradient);
    }
    if (problems_.empty()) return;
    std::string text =
        fmt::format("the program is inconsistent, a defect of the code that made it ({} problems):", count_);
    fail(ErrorCode::internal, "{}{}", text, problems_);
  }

 private:
  template <class... Args>
  void problem(fmt::format_string<Args...> text, Args&&... args) {
    if (++count_ <= 20) problems_ += "\n  " + fmt::format(text, std::forward<Args>(args)...);
  }
  bool is_made(ValueId id) const { return id < made_.size() && made_[id]; }
  void enter(const Named& value, std::string_view what) {
    if (value.value >= made_.size() || program_.value(value.value).op >= 0)
      return problem("{} '{}' is %{}, which is not a value without an op", what, value.name, value.value);
    made_[value.value] =
        value.value != 0;  // an undefined output has no tensor, and one tensor may be returned several times
  }

  void check(size_t i) {
    const Op& op = program_.ops[i];
    std::vector<const Type*> types;
    for (const Operand& input : op.inputs) {
      types.push_back(input.value == 0 ? nullptr : &program_.value(input.value).type);
      if (input.value == 0) continue;
      if (!is_made(input.value)) {
        problem("op {} ({}) reads %{} before it is made", i, op.name(), input.value);
        return;
      }
      const ValueId now = states_[program_.value(input.value).root];
      if (now != input.state)
        problem("op {} ({}) reads %{} in the state after %{}, but the last write before it is %{}", i, op.name(),
                input.value, input.state, now);
    }
    check_outputs(i, op);
    if (!op.joins) group_begin_ = static_cast<int>(i);
    else check_joins(i, op);
    try {
      const std::vector<std::optional<Type>> inferred = infer_types(op, types);
      for (size_t o = 0; o < op.outputs.size() && o < inferred.size(); ++o) {
        if (op.outputs[o] == 0 || !inferred[o]) continue;
        const Type& has = program_.value(op.outputs[o]).type;
        // Tensors whose layouts differ only in axes with one process are not resharded, and may be
        // one value.
        const bool same = has.spec == inferred[o]->spec || (has.spec != nullptr && inferred[o]->spec != nullptr &&
                                                            same_value(has.meta.dtype, has.spec, inferred[o]->spec));
        if (!(has.meta == inferred[o]->meta) || !same)
          problem("%{} of op {} ({}) is {}, but the op computes {} from {}", op.outputs[o], i, op.name(),
                  to_string(has), to_string(*inferred[o]), text_of(types));
      }
      if (inferred.size() != op.outputs.size())
        problem("op {} ({}) has {} outputs, but {} are named", i, op.name(), inferred.size(), op.outputs.size());
    } catch (const Error& error) { problem("op {} ({}): {}", i, op.name(), error.what()); }
  }

  static std::string text_of(std::span<const Type* const> types) {
    std::string text;
    for (const Type* type : types)
      text += (text.empty() ? "" : ", ") + (type == nullptr ? "nothing" : to_string(*type));
    return text;
  }

  /// Ops that run together are either all reshards, none of which reads a result of another, or all
  /// elementwise ops but for the first, whose kernel may be one that takes their loop as its epilogue.
  void check_joins(size_t i, const Op& op) {
    const Op* const first = group_begin_ < 0 ? nullptr : &program_.ops[static_cast<size_t>(group_begin_)];
    const bool moves = first != nullptr && first->kind == Kind::reshard && op.kind == Kind::reshard &&
                       program_.value(op.inputs[0].value).op < group_begin_;
    const bool loops = first != nullptr && (is_looped(*first) || leads_loop(*first)) && is_looped(op);
    if (!moves && !loops) problem("op {} ({}) cannot run together with the op before it", i, op.name());
  }

  void check_outputs(size_t i, const Op& op) {
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const ValueId id = op.outputs[o];
      if (id == 0) continue;
      if (id >= made_.size()) {
        problem("op {} ({}) makes %{}, which does not exist", i, op.name(), id);
        continue;
      }
      if (made_[id]) problem("op {} ({}) makes %{}, which another op has made before", i, op.name(), id);
      made_[id] = true;
      const Value& value = program_.value(id);
      if (value.op != static_cast<int>(i))
        problem("%{} is made by op {} ({}), but names op {}", id, i, op.name(), value.op);
      const auto is_source = [&](const Operand& input) { return input.value == value.source; };
      if (value.source != 0 && std::none_of(op.inputs.begin(), op.inputs.end(), is_source))
        problem("%{} of op {} ({}) shares the buffer of %{}, which is not one of its inputs", id, i, op.name(),
                value.source);
      if (value.root != (value.source == 0 ? id : program_.value(value.source).root))
        problem("%{} names %{} as the root of its tree", id, value.root);
      if (op.writes[o] && value.source == 0)
        problem("%{} of op {} ({}) is a write, but shares no buffer", id, i, op.name());
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0 && op.writes[o]) states_[program_.value(op.outputs[o]).root] = op.outputs[o];
    }
  }

  const Program& program_;
  std::vector<bool> made_;
  std::vector<ValueId> states_;  // by root
  int group_begin_ = -1;         // the first of the ops that run together
  std::string problems_;
  int count_ = 0;
};

}  // namespace

void Program::verify() const { Verifier(*this).run(); }

}  // namespace shard::program

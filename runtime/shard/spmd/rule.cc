#include "shard/spmd/rule.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// The meaning of a name: a function, or an axis expression.
struct NamedRule {
  Rule function = nullptr;
  std::string expression;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, NamedRule, std::less<>> rules;
  std::map<std::string, Guard, std::less<>> guards;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

void register_builtin_rules_once() {
  static std::once_flag once;
  std::call_once(once, register_builtin_rules);
}

template <class T>
T find(const std::map<std::string, T, std::less<>>& table, std::string_view name) {
  register_builtin_rules_once();
  const std::lock_guard lock(registry().mutex);
  const auto found = table.find(name);
  return found == table.end() ? T{} : found->second;
}

/// The rule of an op, even where the op has the expression itself; neither member is set where it
/// has none.
NamedRule rule_of(const OpDef& op) {
  if (is_axis_expr(op.rule)) return {nullptr, std::string(op.rule)};
  return op.rule.empty() ? NamedRule{} : find(registry().rules, op.rule);
}

}  // namespace

const AttrValue& RuleArgs::attr(std::string_view name) const {
  for (size_t i = 0; i < attrs.size(); ++i) {
    if (op.attrs[i] == name) return attrs[i];
  }
  fail(ErrorCode::internal, "[{}] the placement rule uses an attribute '{}' that the op does not have", op.name, name);
}

int64_t RuleArgs::integer(std::string_view name) const {
  const AttrValue& value = attr(name);
  if (const auto* scalar = std::get_if<Scalar>(&value)) return scalar->to<int64_t>();
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  fail(ErrorCode::internal, "[{}] attribute '{}' is not an integer", op.name, name);
}

bool RuleArgs::flag(std::string_view name) const {
  if (const auto* flag = std::get_if<bool>(&attr(name))) return *flag;
  fail(ErrorCode::internal, "[{}] attribute '{}' is not a bool", op.name, name);
}

IntArray RuleArgs::integers(std::string_view name) const {
  if (const auto* list = std::get_if<IntArray>(&attr(name))) return *list;
  fail(ErrorCode::internal, "[{}] attribute '{}' is not a list of integers", op.name, name);
}

void register_rule(std::string_view name, Rule rule) {
  const std::lock_guard lock(registry().mutex);
  registry().rules[std::string(name)] = {rule, {}};
}

void register_rule(std::string_view name, std::string_view expression) {
  const std::lock_guard lock(registry().mutex);
  registry().rules[std::string(name)] = {nullptr, std::string(expression)};
}

std::vector<std::string> rule_names() {
  register_builtin_rules_once();
  const std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, rule] : registry().rules) names.push_back(name);
  return names;
}

void register_guard(std::string_view name, Guard guard) {
  const std::lock_guard lock(registry().mutex);
  registry().guards[std::string(name)] = guard;
}

bool has_rule(const OpDef& op) {
  const NamedRule rule = rule_of(op);
  return rule.function != nullptr || !rule.expression.empty();
}

bool is_absent_output(const RuleArgs& args, size_t slot) {
  const auto absent = [&](size_t input) {
    return args.slots[input].count == 1 && args.tensors[args.slots[input].first].spec == nullptr;
  };
  for (const AliasDef& alias : args.op.aliases) {
    if (static_cast<size_t>(alias.output) == slot && absent(static_cast<size_t>(alias.input))) return true;
  }
  const SlotDef& output = args.op.outputs[slot];
  if (output.kind != SlotDef::Kind::optional || !output.name.ends_with("_grad")) return false;
  for (size_t s = 0; s < args.slots.size(); ++s) {
    if (args.op.inputs[s].name == output.name.substr(0, output.name.size() - 5)) return absent(s);
  }
  return false;
}

RuleResult infer(const RuleArgs& args) {
  const NamedRule rule = rule_of(args.op);
  if (rule.function != nullptr) return rule.function(args);
  if (!rule.expression.empty()) return infer_by_expression(args, rule.expression);
  fail(ErrorCode::no_rule,
       "[{}] has no placement rule{}. Add `spmd_rule` to it in {}, or allow FallbackPolicy::replicate, which gathers "
       "every argument",
       args.op.name, args.op.rule.empty() ? "" : fmt::format(" (no rule named '{}' is registered)", args.op.rule),
       args.op.location);
}

RuleResult infer_reverse(const RuleArgs& args, std::span<const DistSpec* const> wanted) {
  if (wanted.size() != args.outputs.size()) {
    fail(ErrorCode::layout,
         "[{}] reverse inference got the layouts of {} outputs, but the op has {}; pass one, or null, for each",
         args.op.name, wanted.size(), args.outputs.size());
  }
  RuleArgs reverse = args;
  reverse.wanted = wanted;
  return infer(reverse);
}

RuleResult infer_replicated(const RuleArgs& args) {
  RuleResult result;
  for (const TensorArg& tensor : args.tensors) result.inputs.emplace_back(args.mesh, tensor.meta.dims.rank());
  for (const Meta& output : args.outputs) result.outputs.emplace_back(args.mesh, output.dims.rank());
  return result;
}

Commuting commuting(const RuleArgs& args) {
  Commuting result{args.op.commutes, args.op.commute_types};
  if (result.how == Commutes::no) {
    const NamedRule rule = rule_of(args.op);
    if (rule.expression.empty()) return {};
    const std::optional<Commutation>& mark = parsed(args, rule.expression).commutation;
    if (!mark) return {};
    result = {mark->kind == Commutation::Kind::multilinear ? Commutes::multilinear : Commutes::jointly,
              type_bits(*mark)};
  }
  if (args.op.commute_guard.empty()) return result;
  const Guard guard = find(registry().guards, args.op.commute_guard);
  if (guard == nullptr) {
    fail(ErrorCode::no_rule, "[{}] names the partial_guard '{}', which is not registered", args.op.name,
         args.op.commute_guard);
  }
  return guard(args) ? result : Commuting{};
}

}  // namespace shard::spmd

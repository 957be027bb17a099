#include "spmd/rule.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "spmd/builtin_rules.h"
#include "spmd/notation.h"

namespace shard::spmd {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, Rule, std::less<>> rules;
  std::map<std::string, Guard, std::less<>> guards;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

bool is_expression(std::string_view rule) { return rule.find("->") != std::string_view::npos; }

template <class T>
T find(const std::map<std::string, T, std::less<>>& table, std::string_view name) {
  static std::once_flag once;
  std::call_once(once, register_builtin_rules);
  const std::lock_guard lock(registry().mutex);
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace

const AttrValue& RuleArgs::attr(std::string_view name) const {
  for (size_t i = 0; i < attrs.size(); ++i) {
    if (op.attrs[i] == name) return attrs[i];
  }
  fail(ErrorCode::internal, "[{}] the placement rule asks for an attribute '{}' that the op does not have", op.name, name);
}

int64_t RuleArgs::integer(std::string_view name) const {
  const AttrValue& value = attr(name);
  if (const auto* scalar = std::get_if<Scalar>(&value)) return scalar->to<int64_t>();
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  fail(ErrorCode::internal, "[{}] attribute '{}' is no integer", op.name, name);
}

bool RuleArgs::flag(std::string_view name) const {
  if (const auto* flag = std::get_if<bool>(&attr(name))) return *flag;
  fail(ErrorCode::internal, "[{}] attribute '{}' is no bool", op.name, name);
}

IntArray RuleArgs::integers(std::string_view name) const {
  if (const auto* list = std::get_if<IntArray>(&attr(name))) return *list;
  fail(ErrorCode::internal, "[{}] attribute '{}' is no list of integers", op.name, name);
}

void register_rule(std::string_view name, Rule rule) {
  const std::lock_guard lock(registry().mutex);
  registry().rules[std::string(name)] = rule;
}

void register_guard(std::string_view name, Guard guard) {
  const std::lock_guard lock(registry().mutex);
  registry().guards[std::string(name)] = guard;
}

bool has_rule(const OpDef& op) {
  return is_expression(op.rule) || (!op.rule.empty() && find(registry().rules, op.rule) != nullptr);
}

RuleResult infer(const RuleArgs& args) {
  if (is_expression(args.op.rule)) return solve(args, from_expression(args, args.op.rule));
  const Rule rule = args.op.rule.empty() ? nullptr : find(registry().rules, args.op.rule);
  if (rule == nullptr) {
    fail(ErrorCode::no_rule,
         "[{}] has no placement rule{}. Add `spmd_rule` to it in {}, or allow FallbackPolicy::replicate, which gathers every argument",
         args.op.name, args.op.rule.empty() ? "" : fmt::format(" (no rule named '{}' is registered)", args.op.rule), args.op.location);
  }
  return rule(args);
}

RuleResult infer_replicated(const RuleArgs& args) {
  RuleResult result;
  for (const TensorArg& tensor : args.tensors) result.inputs.emplace_back(args.mesh, tensor.meta.dims.rank());
  for (const Meta& output : args.outputs) result.outputs.emplace_back(args.mesh, output.dims.rank());
  return result;
}

unsigned commute_types(const RuleArgs& args) {
  if (args.op.commutes == Commutes::no) return 0;
  if (args.op.commute_guard.empty()) return args.op.commute_types;
  const Guard guard = find(registry().guards, args.op.commute_guard);
  if (guard == nullptr) {
    fail(ErrorCode::no_rule, "[{}] names the partial_guard '{}', which is not registered", args.op.name, args.op.commute_guard);
  }
  return guard(args) ? args.op.commute_types : 0;
}

}  // namespace shard::spmd

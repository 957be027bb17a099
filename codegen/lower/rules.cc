// Looks rules up and derives those of backward ops.
#include "lower/rules.h"

#include "model/rule_fit.h"

namespace shardgen {
namespace {

shard::SlotNames slots_of(const Signature& signature) {
  shard::SlotNames names;
  for (const Input& input : signature.inputs) names.inputs.push_back(input.name.text);
  for (const Output& output : signature.outputs) names.outputs.push_back(output.name.text);
  return names;
}

std::optional<AxisExpr> derived_expression(const Op& backward, const Op& forward) {
  if (!backward.forward || !forward.infer_meta || !forward.infer_meta->expression) return std::nullopt;
  // The names are those of the backward op's own `forward` line; the tensors are in the order of
  // the forward op.
  const shard::SlotNames names = slots_of(backward.forward->signature);
  const Signature& signature = forward.signature;
  if (names.inputs.size() != signature.inputs.size() || names.outputs.size() != signature.outputs.size())
    return std::nullopt;
  shard::SlotNames own = slots_of(backward.signature);
  for (const Name& name : backward.no_need_buffer) own.shape_only.push_back(name.text);
  std::optional<AxisExpr> gradient = shard::gradient_of(*forward.infer_meta->expression, names, own);
  return gradient && find_mismatches(*gradient, backward).empty() ? gradient : std::nullopt;
}

/// The expression of an op, its own or derived; nothing if it has another kind of rule or none.
std::optional<AxisExpr> expression_of(const Selection& selection, const Op& op) {
  if (op.infer_meta && op.infer_meta->spmd_rule) return op.infer_meta->expression;
  const Op* forward = op.is_backward && op.forward ? selection.find(op.forward->name.text) : nullptr;
  return forward == nullptr ? std::nullopt : derived_expression(op, *forward);
}

}  // namespace

std::optional<std::string> rule_of(const Selection& selection, const Op& op) {
  if (const std::optional<AxisExpr> expr = expression_of(selection, op)) return shard::to_string(*expr);
  if (op.infer_meta && op.infer_meta->spmd_rule) return op.infer_meta->spmd_rule->text;
  return std::nullopt;
}

std::optional<Partial> commutation_of(const Selection& selection, const Op& op) {
  if (op.extension.partial) return op.extension.partial;
  const std::optional<AxisExpr> expr = expression_of(selection, op);
  return expr ? expr->commutation : std::nullopt;
}

}  // namespace shardgen

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

}  // namespace

std::optional<std::string> derived_rule(const Op& backward, const Op& forward) {
  if (!backward.forward || !forward.infer_meta || !forward.infer_meta->expression) return std::nullopt;
  // The names are those that the backward op's own `forward` line gives; the tensors stand in the order of the forward op.
  const shard::SlotNames names = slots_of(backward.forward->signature);
  if (names.inputs.size() != forward.signature.inputs.size() || names.outputs.size() != forward.signature.outputs.size()) return std::nullopt;
  const std::optional<AxisExpr> gradient = shard::gradient_of(*forward.infer_meta->expression, names, slots_of(backward.signature));
  if (!gradient || !misfits(*gradient, backward).empty()) return std::nullopt;
  return shard::to_string(*gradient);
}

std::optional<std::string> rule_of(const Selection& selection, const Op& op) {
  if (op.infer_meta && op.infer_meta->spmd_rule) {
    return op.infer_meta->expression ? shard::to_string(*op.infer_meta->expression) : op.infer_meta->spmd_rule->text;
  }
  const Op* forward = op.is_backward && op.forward ? selection.find(op.forward->name.text) : nullptr;
  return forward == nullptr ? std::nullopt : derived_rule(op, *forward);
}

std::optional<Partial> commutation_of(const Op& op) {
  if (op.extension.partial) return op.extension.partial;
  return op.infer_meta && op.infer_meta->expression ? op.infer_meta->expression->commutation : std::nullopt;
}

}  // namespace shardgen

// Checks placement rules: the axis expression itself, and that it fits the op.
#include <fmt/format.h>

#include <algorithm>

#include "check/parts.h"
#include "model/rule_fit.h"

namespace shardgen {

void check_rule(const Op& op, DiagnosticSink& sink) {
  const InferMeta& meta = *op.infer_meta;
  const std::string& text = meta.spmd_rule->text;
  if (meta.wrong) {
    sink.error(meta.rule_places.at(meta.wrong->at), "bad-rule", meta.wrong->message);
    return;
  }
  if (!meta.expression) {
    const bool word = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (word) return;
    sink.error(meta.spmd_rule->at, "bad-rule",
               fmt::format("'{}' is neither the name of a rule nor an axis expression ('a b -> b').", text));
    return;
  }
  for (const AxisProblem& problem : find_mismatches(*meta.expression, op)) {
    sink.error(meta.rule_places.at(problem.at), "bad-rule", problem.message);
  }
  if (meta.expression->commutation && op.extension.partial) {
    sink.error(
        meta.rule_places.at(meta.expression->commutation->at), "bad-rule",
        fmt::format(
            "Op '{}' declares twice how it commutes with reductions: here and in 'shard: partial'. Remove one of them.",
            op.name.text));
  }
}

}  // namespace shardgen

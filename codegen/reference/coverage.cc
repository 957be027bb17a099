// Determines and counts placements.
#include "reference/coverage.h"

#include <fmt/format.h>

#include <array>

#include "lower/rules.h"

namespace shardgen {
namespace {

constexpr std::array<std::string_view, 7> kKindNames = {"axis expression",
                                                        "derived expression",
                                                        "named rule",
                                                        "replicated fallback: unknown rule",
                                                        "replicated fallback: no rule",
                                                        "no tensor argument",
                                                        "calls other ops"};

std::string_view name_of(Coverage::Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }

Coverage cover(const Selection& selection, const Runtime& runtime, const Op& op) {
  if (!has_body(op)) return {&op, Coverage::Kind::calls, ""};
  if (op.signature.inputs.empty()) return {&op, Coverage::Kind::no_tensors, ""};
  const std::optional<std::string> rule = rule_of(selection, op);
  if (!rule) return {&op, Coverage::Kind::none, ""};
  if (!op.infer_meta->spmd_rule) return {&op, Coverage::Kind::derived, *rule};
  if (op.infer_meta->expression) return {&op, Coverage::Kind::expression, *rule};
  return {&op, runtime.rules.contains(*rule) ? Coverage::Kind::named : Coverage::Kind::unknown, *rule};
}

std::array<size_t, kKindNames.size()> counts_of(const std::vector<Coverage>& coverage) {
  std::array<size_t, kKindNames.size()> counts{};
  for (const Coverage& each : coverage) ++counts[static_cast<size_t>(each.kind)];
  return counts;
}

}  // namespace

std::vector<Coverage> coverage_of(const Selection& selection, const Runtime& runtime) {
  std::vector<Coverage> coverage;
  for (const std::vector<const Op*>& family : selection.ops) {
    for (const Op* op : family) coverage.push_back(cover(selection, runtime, *op));
  }
  return coverage;
}

bool falls_back(Coverage::Kind kind) { return kind == Coverage::Kind::unknown || kind == Coverage::Kind::none; }

std::string to_text(const std::vector<Coverage>& coverage) {
  std::string text;
  for (const Coverage& each : coverage)
    text += fmt::format("{:<40} {}{}{}\n", each.op->name.text, name_of(each.kind), each.rule.empty() ? "" : ": ",
                        each.rule);
  const auto counts = counts_of(coverage);
  text += "\n";
  for (size_t kind = 0; kind < counts.size(); ++kind) text += fmt::format("{:6} {}\n", counts[kind], kKindNames[kind]);
  return text + fmt::format("{:6} ops\n", coverage.size());
}

nlohmann::ordered_json to_json(const std::vector<Coverage>& coverage) {
  nlohmann::ordered_json json = {{"ops", nlohmann::ordered_json::array()},
                                 {"counts", nlohmann::ordered_json::object()}};
  for (const Coverage& each : coverage) {
    json["ops"].push_back(
        {{"name", each.op->name.text},
         {"placement", name_of(each.kind)},
         {"rule", each.rule.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(each.rule)},
         {"falls_back", falls_back(each.kind)}});
  }
  const auto counts = counts_of(coverage);
  for (size_t kind = 0; kind < counts.size(); ++kind) json["counts"][std::string(kKindNames[kind])] = counts[kind];
  return json;
}

}  // namespace shardgen

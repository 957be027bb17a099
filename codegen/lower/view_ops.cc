// The view of the OpDef table: the facts of each op that the runtime reads.
#include <fmt/format.h>

#include "lower/identifiers.h"
#include "lower/view_common.h"
#include "read/axis_expr.h"

namespace shardgen {
namespace {

std::string slot(const Op& op, const std::string& name, bool list) {
  if (list) return fmt::format("{{\"{}\", SlotDef::Kind::list}}", name);
  if (contains(op.optional, name)) return fmt::format("{{\"{}\", SlotDef::Kind::optional}}", name);
  return fmt::format("{{\"{}\"}}", name);
}

std::string input_slots(const Op& op) {
  Texts texts;
  for (const Input& input : op.signature.inputs) texts.push_back(slot(op, input.name.text, input.list));
  return join(texts);
}

std::string output_slots(const Op& op) {
  Texts texts;
  for (const Output& output : op.signature.outputs) texts.push_back(slot(op, output.name.text, output.list));
  return join(texts);
}

std::string attr_names(const Op& op) {
  Texts texts;
  for (const Attr& attr : op.signature.attrs) texts.push_back("\"" + attr.name.text + "\"");
  return join(texts);
}

std::string aliases(const Op& op) {
  Texts texts;
  const auto add = [&](const AliasPair& pair, const char* kind) {
    texts.push_back(fmt::format("{{{}, {}, AliasDef::Kind::{}}}", find_output(op.signature, pair.output.text),
                                find_input(op.signature, pair.input.text), kind));
  };
  for (const AliasPair& pair : op.view) {
    const bool written = view_kind(op, find_output(op.signature, pair.output.text)) == ViewKind::written;
    add(pair, written ? "written_view" : "view");
  }
  for (const AliasPair& pair : op.inplace) add(pair, "inplace");
  return join(texts);
}

Json commutes(const Op& op) {
  if (!op.extension.partial) return false;
  const Partial& partial = *op.extension.partial;
  unsigned bits = 0;
  for (const ReduceKind kind : reductions_of(partial)) bits |= reduce_bit(kind);
  return {{"kind", partial.kind == PartialKind::multilinear ? "multilinear" : "jointly"},
          {"types", fmt::format("{:#x}", bits)}};
}

Json rule(const Op& op) {
  if (!op.infer_meta->spmd_rule) return false;
  const std::string& text = op.infer_meta->spmd_rule->text;
  std::string problem;
  const std::optional<AxisExpr> expr = is_axis_expr(text) ? parse_axis_expr(text, problem) : std::nullopt;
  return expr ? to_string(*expr) : text;
}

/// "{a, b}": the braces come from here, because templates cannot write them next to a tag.
std::string braces(const std::string& text) { return "{" + text + "}"; }

Json list_or_false(const std::string& text) { return text.empty() ? Json(false) : Json(braces(text)); }

}  // namespace

Json ops_view(const LowerContext& context, const Part& part) {
  Json ops = Json::array();
  for (const Op* op : own_ops(part)) {
    Json guard = false;
    if (op->extension.partial_guard) guard = op->extension.partial_guard->text;
    Json inplace = false;
    if (forms_of(context, *op).back() == Form::inplace) inplace = inplace_name(*op);
    ops.push_back({{"name", op->name.text},
                   {"inplace_name", std::move(inplace)},
                   {"location", location_of(*op)},
                   {"inputs", list_or_false(input_slots(*op))},
                   {"attrs", list_or_false(attr_names(*op))},
                   {"outputs", braces(output_slots(*op))},
                   {"aliases", list_or_false(aliases(*op))},
                   {"rule", rule(*op)},
                   {"commutes", commutes(*op)},
                   {"guard", std::move(guard)},
                   {"elementwise", is_elementwise(*op)},
                   {"random", is_random(*op)}});
  }
  Json view = file_head(part);
  view["abi"] = kCodegenAbi;
  view["ops"] = std::move(ops);
  return view;
}

}  // namespace shardgen

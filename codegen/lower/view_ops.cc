// The view of the OpDef table: the facts of each op that the runtime reads.
#include <fmt/format.h>

#include "lower/functions.h"
#include "lower/identifiers.h"
#include "lower/rules.h"
#include "lower/view_common.h"

namespace shardgen {
namespace {

std::string slot(const Op& op, const std::string& name, bool list) {
  if (list) return fmt::format("{{\"{}\", {}::Kind::list}}", name, rt("SlotDef"));
  if (contains(op.optional, name)) return fmt::format("{{\"{}\", {}::Kind::optional}}", name, rt("SlotDef"));
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
    texts.push_back(fmt::format("{{{}, {}, {}::Kind::{}}}", find_output(op.signature, pair.output.text),
                                find_input(op.signature, pair.input.text), rt("AliasDef"), kind));
  };
  for (const AliasPair& pair : op.view) {
    const bool written = view_kind(op, find_output(op.signature, pair.output.text)) == ViewKind::written;
    add(pair, written ? "written_view" : "view");
  }
  for (const AliasPair& pair : op.inplace) add(pair, "inplace");
  return join(texts);
}

Json commutes(const Op& op) {
  const std::optional<Partial> commutation = commutation_of(op);
  if (!commutation) return false;
  return {{"kind", commutation->kind == PartialKind::multilinear ? "multilinear" : "jointly"},
          {"types", fmt::format("{:#x}", shard::type_bits(*commutation))}};
}

/// The rule as the inside of a string literal. A long one becomes several on lines of their own, which C++ joins.
Json rule(const LowerContext& context, const Op& op) {
  const std::optional<std::string> text = rule_of(context.selection, op);
  if (!text) return false;
  constexpr size_t longest = 70;
  std::string lines;
  std::string_view rest = *text;
  while (rest.size() > longest) {
    const size_t space = rest.rfind(' ', longest);
    if (space == std::string_view::npos) break;
    lines += std::string(rest.substr(0, space + 1)) + "\"\n          \"";
    rest.remove_prefix(space + 1);
  }
  return lines + std::string(rest);
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
    ops.push_back({{"function", cpp_name(*op)},
                   {"name", op->name.text},
                   {"inplace_name", std::move(inplace)},
                   {"location", location_of(*op)},
                   {"inputs", list_or_false(input_slots(*op))},
                   {"attrs", list_or_false(attr_names(*op))},
                   {"outputs", braces(output_slots(*op))},
                   {"aliases", list_or_false(aliases(*op))},
                   {"rule", rule(context, *op)},
                   {"commutes", commutes(*op)},
                   {"guard", std::move(guard)},
                   {"elementwise", is_elementwise(*op)},
                   {"random", is_random(*op)}});
  }
  Json view = file_head(part);
  view["spaces"] = declarations_view(missing_functions(context, part));
  view["ops"] = std::move(ops);
  return view;
}

}  // namespace shardgen

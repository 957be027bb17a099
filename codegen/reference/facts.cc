// Collects facts from the model and from the decisions of lowering.
#include "reference/facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "check/check.h"
#include "lower/identifiers.h"
#include "lower/plan.h"
#include "lower/rules.h"
#include "lower/support.h"
#include "model/print.h"
#include "reference/layers.h"
#include "shard/core/axis_expr.h"

namespace shardgen {
namespace {

bool is_error(const Diagnostic& finding) { return finding.severity == Severity::error; }

std::vector<Diagnostic> findings_of(const Op& op, const std::vector<Diagnostic>& findings) {
  std::vector<Diagnostic> own;
  std::copy_if(findings.begin(), findings.end(), std::back_inserter(own),
               [&](const Diagnostic& finding) { return stands_in(finding, op); });
  return own;
}

std::vector<ArgumentFact> argument_facts(const Op& op) {
  std::vector<ArgumentFact> facts;
  for (const ArgRef arg : op.signature.args) {
    const std::string& name = name_of(op.signature, arg).text;
    ArgumentFact fact{name, "", "", ""};
    std::vector<std::string> notes;
    if (arg.tensor) {
      fact.type = op.signature.inputs[arg.index].list ? "Tensor[]" : "Tensor";
      if (contains(op.optional, name)) notes.push_back("may be absent");
      if (inplace_pair_of_input(op, arg.index) != nullptr) notes.push_back("written by the in-place form");
      if (contains(op.no_need_buffer, name)) notes.push_back("only its shape is read");
    } else {
      const Attr& attr = op.signature.attrs[arg.index];
      fact.type = attr.unknown.text.empty() ? yaml_name(attr.type) : attr.unknown.text;
      if (attr.scalar_of) fact.type += fmt::format("({})", yaml_name(*attr.scalar_of));
      if (attr.default_value) fact.default_value = attr.default_value->spelling;
      if (op.infer_meta && op.infer_meta->local_shape && op.infer_meta->local_shape->text == name)
        notes.push_back("a shape: each rank computes with that of its local shard");
    }
    fact.note = fmt::format("{}", fmt::join(notes, ", "));
    facts.push_back(std::move(fact));
  }
  return facts;
}

std::vector<ArgumentFact> output_facts(const Op& op) {
  std::vector<ArgumentFact> facts;
  for (const Output& output : op.signature.outputs) {
    std::vector<std::string> notes;
    if (contains(op.intermediate, output.name.text))
      notes.push_back("intermediate: kept for the gradient, not returned");
    if (contains(op.optional, output.name.text)) notes.push_back("absent where its argument is");
    if (!output.dense) notes.push_back("not a dense tensor");
    facts.push_back(
        {output.name.text, output.list ? "Tensor[]" : "Tensor", "", fmt::format("{}", fmt::join(notes, ", "))});
  }
  return facts;
}

std::vector<AliasFact> alias_facts(const Op& op) {
  std::vector<AliasFact> facts;
  for (const AliasPair& pair : op.view) {
    const bool written = view_kind(op, find_output(op.signature, pair.output.text)) == ViewKind::written;
    const char* how =
        written ? "shares the buffer of {}, which the kernel writes." : "is another view of the buffer of {}.";
    facts.push_back({pair.output.text, pair.input.text, written ? "written view" : "view",
                     pair.output.text + " " + fmt::format(fmt::runtime(how), pair.input.text)});
  }
  for (const AliasPair& pair : op.inplace) {
    facts.push_back({pair.output.text, pair.input.text, "inplace",
                     fmt::format("{}: {} overwrites {}.", inplace_name(op), pair.output.text, pair.input.text)});
  }
  return facts;
}

std::string kernel_text(const Op& op) {
  if (!op.kernel) return "";
  std::vector<std::string> texts;
  for (const KernelFunc& func : op.kernel->funcs) {
    const auto list = [](const std::vector<TensorFormat>& formats) {
      std::vector<std::string_view> names;
      for (const TensorFormat format : formats) names.push_back(yaml_name(format));
      return fmt::format("{}", fmt::join(names, ", "));
    };
    texts.push_back(func.has_formats
                        ? fmt::format("{} {{{} -> {}}}", func.name.text, list(func.inputs), list(func.outputs))
                        : func.name.text);
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string rule_text(const Op& op, const std::string& rule) {
  if (!op.infer_meta) return "";
  if (op.signature.inputs.empty()) return "No tensor argument: it makes a plain tensor, also under a mesh.";
  if (rule.empty()) return "No rule: a call on distributed tensors throws no_rule, unless it may replicate.";
  if (!op.infer_meta->spmd_rule)
    return fmt::format("Axis expression \"{}\", derived from that of the forward op.", rule);
  return op.infer_meta->expression ? fmt::format("Axis expression \"{}\".", rule) : fmt::format("C++ rule {}.", rule);
}

std::string commutes_text(const Selection& selection, const Op& op) {
  const std::optional<Partial> partial = commutation_of(selection, op);
  if (!partial) return "A pending reduction of an argument is done before the op.";
  std::vector<std::string_view> names;
  for (const ReduceKind kind : shard::reductions_of(*partial)) names.push_back(yaml_name(kind));
  const bool one = partial->kind == PartialKind::multilinear;
  std::string text = fmt::format("Commutes with a pending {} {} ({})", fmt::join(names, ", "),
                                 one ? "of one argument" : "of all arguments together", yaml_name(partial->kind));
  if (op.extension.partial_guard) text += fmt::format(", where {} holds", op.extension.partial_guard->text);
  return text + ".";
}

/// The definition of each op, by name; the first of equal names.
using Index = std::map<std::string, std::pair<const Family*, const Op*>>;

LinkFact link(const Index& index, const std::string& role, const std::string& name) {
  LinkFact fact{role, name, "", "", false};
  if (const auto found = index.find(name); found != index.end()) {
    const Location& at = found->second.second->name.at;
    fact = {role, name, found->second.first->name, fmt::format("{}:{}", base_name(at.file), at.line), true};
  }
  return fact;
}

std::vector<LinkFact> links_of(const Index& index, const Op& op) {
  std::vector<LinkFact> links;
  if (op.backward) links.push_back(link(index, "backward op", op.backward->text));
  if (op.forward) links.push_back(link(index, "forward op", op.forward->name.text));
  if (op.invoke) links.push_back(link(index, "invokes", op.invoke->function.text));
  return links;
}

OpFacts facts_of(const Family& family, const Op& op, const Index& index) {
  OpFacts facts;
  facts.name = op.name.text;
  facts.family = family.name;
  facts.path = family.path;
  facts.line = op.name.at.line;
  facts.backward = op.is_backward;
  facts.signature = to_string(op.name.text, op.signature);
  facts.doc = op.extension.doc.value_or("");
  while (!facts.doc.empty() && facts.doc.back() == '\n') facts.doc.pop_back();
  facts.arguments = argument_facts(op);
  facts.outputs = output_facts(op);
  facts.kernel = kernel_text(op);
  if (op.infer_meta && op.infer_meta->func) facts.infer_meta = op.infer_meta->func->text;
  facts.links = links_of(index, op);
  return facts;
}

/// Adds the facts that only an op without errors has.
void add_checked_facts(const Selection& selection, const Op& op, OpFacts& facts) {
  facts.aliases = alias_facts(op);
  facts.rule = rule_of(selection, op).value_or("");
  facts.rule_text = rule_text(op, facts.rule);
  if (has_body(op) && !op.signature.inputs.empty()) facts.commutes = commutes_text(selection, op);
  if (is_elementwise(op)) facts.traits.push_back("elementwise");
  if (is_random(op)) facts.traits.push_back("random");
  for (const TraitInfo& each : kTraits) {
    if (has_trait(op, each.trait)) facts.traits.emplace_back(each.name);
  }
  for (const Output& output : op.signature.outputs) {
    if (has_dynamic_shape(op, output)) facts.traits.push_back(fmt::format("shape of {} from data", output.name.text));
  }
}

}  // namespace

std::vector<std::string> function_names(const Op& op) {
  std::vector<std::string> names = {api_name(op)};
  if (!op.inplace.empty()) names.push_back(inplace_name(op));
  if (!op.intermediate.empty()) names.push_back(intermediate_name(op));
  return names;
}

std::vector<OpFacts> collect_facts(const std::vector<Family>& families, const std::vector<Diagnostic>& findings,
                                   const Runtime& runtime) {
  Index index;
  for (const Family& family : families) {
    for (const Op& op : family.ops) index.try_emplace(op.name.text, &family, &op);
  }
  std::vector<OpFacts> all;
  std::vector<Family> sound;
  std::vector<size_t> places;  // of the valid ops in `all`
  for (const Family& family : families) {
    sound.push_back({family.name, family.path, {}, family.imported});
    for (size_t i = 0; i < family.ops.size(); ++i) {
      all.push_back(facts_of(family, family.ops[i], index));
      all.back().findings = findings_of(family.ops[i], findings);
      if (std::any_of(all.back().findings.begin(), all.back().findings.end(), is_error)) {
        all.back().left_out = "it has errors";
        continue;
      }
      sound.back().ops.push_back(family.ops[i]);
      places.push_back(all.size() - 1);
    }
  }
  const Selection selection = select_ops(sound, runtime);
  const std::vector<std::vector<Part>> no_parts;
  const LowerContext context{selection, runtime, no_parts};
  std::map<const Op*, std::string> reasons;
  for (const Dropped& dropped : selection.dropped) reasons[dropped.op] = dropped.reason;
  size_t next = 0;
  for (const Family& family : sound) {
    for (const Op& op : family.ops) {
      OpFacts& facts = all[places[next++]];
      add_checked_facts(selection, op, facts);
      if (const auto reason = reasons.find(&op); reason != reasons.end()) {
        facts.left_out = reason->second;
        continue;
      }
      facts.declarations = declarations_of(context, op);
      facts.layers = layers_of(context, op);
    }
  }
  return all;
}

}  // namespace shardgen

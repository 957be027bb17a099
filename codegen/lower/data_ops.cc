// Template data of the OpDef table: the facts of each op that the runtime reads.
#include <fmt/format.h>

#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/identifiers.h"
#include "lower/masks.h"
#include "lower/rules.h"

namespace shardgen {
namespace {

/// "x", "x?" when it is optional, "x[]" for a list, "x!" for an output that calls may leave out: the argument of slots<...>.
std::string slot(const Op& op, const std::string& name, bool list) {
  const bool masked = find_output(op.signature, name) >= 0 && is_masked(op, find_output(op.signature, name));
  return "\"" + name + (list ? "[]" : contains(op.optional, name) ? "?" : "") + (masked ? "!" : "") + "\"";
}

template <class T>
Texts slots(const Op& op, const std::vector<T>& tensors) {
  Texts texts;
  for (const T& tensor : tensors) texts.push_back(slot(op, tensor.name.text, tensor.list));
  return texts;
}

Texts attr_names(const Op& op) {
  Texts texts;
  for (const Attr& attr : op.signature.attrs) texts.push_back("\"" + attr.name.text + "\"");
  return texts;
}

Texts aliases(const Op& op) {
  Texts texts;
  const auto add = [&](const AliasPair& pair, const char* kind) {
    texts.push_back(fmt::format("{}({}, {})", rt(kind), find_output(op.signature, pair.output.text),
                                find_input(op.signature, pair.input.text)));
  };
  for (const AliasPair& pair : op.view) {
    const bool written = view_kind(op, find_output(op.signature, pair.output.text)) == ViewKind::written;
    add(pair, written ? "written_alias" : "view_alias");
  }
  for (const AliasPair& pair : op.inplace) add(pair, "inplace_alias");
  return texts;
}

/// The rule as the inside of a string literal. A long one becomes several literals on lines of
/// their own, which C++ concatenates.
std::string rule_literal(const std::string& text) {
  constexpr size_t longest = 70;
  std::string lines;
  std::string_view rest = text;
  while (rest.size() > longest) {
    const size_t space = rest.rfind(' ', longest);
    if (space == std::string_view::npos) break;
    lines += std::string(rest.substr(0, space + 1)) + "\"\n    \"";
    rest.remove_prefix(space + 1);
  }
  return "\"" + lines + std::string(rest) + "\"";
}

/// A bit for each output whose shape depends on data.
unsigned dynamic_outputs(const Op& op) {
  unsigned bits = 0;
  for (size_t i = 0; i < op.signature.outputs.size(); ++i)
    bits |= has_dynamic_shape(op, op.signature.outputs[i]) ? 1u << i : 0u;
  return bits;
}

/// A bit for each input whose elements the op does not read.
unsigned no_need_buffer(const Op& op) {
  unsigned bits = 0;
  for (const Name& name : op.no_need_buffer) bits |= 1u << find_input(op.signature, name.text);
  return bits;
}

/// "{kNoNeutral, 1.0}": for the first two arguments.
std::string neutral_values(const Op& op) {
  Texts values;
  for (size_t i = 0; i < 2; ++i) {
    std::string value = rt("kNoNeutral");
    for (const Neutral& one : *op.extension.neutral) {
      if (find_input(op.signature, one.arg.text) == static_cast<int>(i)) value = fmt::format("{:#}", one.value);
    }
    values.push_back(std::move(value));
  }
  return "{" + join(values) + "}";
}

/// Where the kernel's dtype comes from.
Texts kernel_dtypes(const KernelStep& kernel) {
  Texts sources;
  for (const DTypeSource& source : kernel.dtypes) {
    std::string text;
    switch (source.kind) {
      case DTypeSource::Kind::input: text = fmt::format("{}({})", rt("input_dtype"), source.index); break;
      case DTypeSource::Kind::attr: text = fmt::format("{}({})", rt("attr_dtype"), source.index); break;
      case DTypeSource::Kind::constant:
        text = fmt::format("{}({})", rt("constant_dtype"), data_type(source.constant));
        break;
    }
    sources.push_back(source.to_complex ? rt("complex_of") + "(" + text + ")" : text);
  }
  return sources;
}

/// The initialiser of an OpDef: the members that are not as the runtime has them by default.
std::string definition(const LowerContext& context, const Op& op) {
  Texts members;
  const auto add = [&](const char* member, const std::string& value) {
    const auto found = context.runtime.op_table.find(member);
    if (found != context.runtime.op_table.end()) members.push_back(fmt::format(".{} = {}", found->second, value));
  };
  const auto add_list = [&](const char* member, const char* maker, const Texts& items) {
    if (!items.empty()) add(member, rt(maker, join(items)));
  };
  add("name", "\"" + op.name.text + "\"");
  if (forms_of(context, op).back() == Form::inplace) add("inplace_name", "\"" + inplace_name(op) + "\"");
  add("location", "\"" + location_of(op) + "\"");
  add_list("inputs", "slots", slots(op, op.signature.inputs));
  add_list("attrs", "names", attr_names(op));
  add_list("outputs", "slots", slots(op, op.signature.outputs));
  add_list("aliases", "aliases", aliases(op));
  if (const std::optional<std::string> rule = rule_of(context.selection, op)) add("rule", rule_literal(*rule));
  if (const std::optional<Partial> commutation = commutation_of(context.selection, op)) {
    add("commutes", rt("Commutes") + (commutation->kind == PartialKind::multilinear ? "::multilinear" : "::jointly"));
    add("commute_types", fmt::format("{:#x}", shard::type_bits(*commutation)));
  }
  if (op.extension.partial_guard) add("commute_guard", "\"" + op.extension.partial_guard->text + "\"");
  if (is_elementwise(op)) add("elementwise", "true");
  if (has_trait(op, Trait::pointwise)) add("pointwise", "true");
  if (has_trait(op, Trait::exact)) add("exact", "true");
  if (has_trait(op, Trait::rearranging)) add("rearranging", "true");
  if (has_trait(op, Trait::identity)) add("identity", "true");
  if (op.extension.neutral && context.runtime.op_table.contains("neutral")) add("neutral", neutral_values(op));
  if (context.runtime.op_table.contains("kernel")) {
    for (const Step& step : plan_dense(op, forms_of(context, op).front()).steps) {
      const auto* kernel = std::get_if<KernelStep>(&step);
      const Texts sources = kernel == nullptr ? Texts() : kernel_dtypes(*kernel);
      if (sources.empty()) continue;
      add("kernel", "\"" + kernel->table + "\"");
      add("kernel_dtypes", rt("dtype_sources", join(sources)));
    }
  }
  if (is_random(op)) add("random", "true");
  if (const unsigned unread = no_need_buffer(op); unread != 0) add("no_need_buffer", fmt::format("{:#x}", unread));
  if (const unsigned dynamic = dynamic_outputs(op); dynamic != 0) add("dynamic_outputs", fmt::format("{:#x}", dynamic));
  if (op.infer_meta->local_shape) {
    add("local_shape", fmt::format("{}", find_attr(op.signature, op.infer_meta->local_shape->text)));
    if (const int output = local_shape_output(op); output != 0) add("local_shape_output", fmt::format("{}", output));
  }
  return "{" + join(members) + "}";
}

}  // namespace

Json ops_data(const LowerContext& context, const Part& part) {
  return {{"source", part.source},
          {"spaces", declarations_data(missing_functions(context, part))},
          {"ops", items_of(own_ops(part), [&](const Op& op, Json& ops) {
             ops.push_back({{"function", cpp_name(op)}, {"def", definition(context, op)}});
           })}};
}

}  // namespace shardgen

// What the template data of several layers share.
#include "lower/data_common.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lower/identifiers.h"
#include "model/print.h"

namespace shardgen {
namespace {

/// The first argument from which on all have default values that C++ can express.
size_t first_default(const Op& op) {
  const std::vector<ArgRef>& args = op.signature.args;
  size_t first = args.size();
  while (first > 0 && !args[first - 1].tensor && op.signature.attrs[args[first - 1].index].default_value) --first;
  return first;
}

}  // namespace

std::string join(const Texts& texts) { return fmt::format("{}", fmt::join(texts, ", ")); }

std::string parameter_list(const Op& op, const Texts& params) {
  std::string names;
  for (const std::string& name : arg_names(op)) names += name + " ";
  for (const Output& output : op.signature.outputs) names += output.name.text + " ";
  return declare(names) + join(params);
}

std::string passed_constant(const Passed& passed) {
  const std::string text = spell(passed.constant).value_or(passed.constant.spelling);
  // A kernel's signature is deduced from its arguments, so an integer needs one type, whatever its
  // size, and a list needs a type.
  if (std::holds_alternative<int64_t>(passed.constant.value)) return rt("type::int64_t") + "{" + text + "}";
  return std::holds_alternative<LiteralList>(passed.constant.value) ? rt("IntArray") + text : text;
}

std::string constant_type(const Literal& literal) {
  if (std::holds_alternative<bool>(literal.value)) return rt("type::bool");
  if (std::holds_alternative<int64_t>(literal.value)) return rt("type::int64_t");
  if (const auto* value = std::get_if<FloatValue>(&literal.value))
    return rt(value->single ? "type::float" : "type::double");
  if (std::holds_alternative<std::string>(literal.value)) return "const char*";
  if (std::holds_alternative<DataType>(literal.value)) return rt("DType");
  return std::holds_alternative<PlaceValue>(literal.value) ? rt("Device") : "const " + rt("IntArray") + "&";
}

std::vector<const CallArg*> passed_in(const Op& op, const Call& call) {
  std::vector<const CallArg*> args;
  for (const CallArg& arg : call.args) {
    const bool output = arg.kind == CallArg::Kind::name && find_output(op.signature, arg.name.text) >= 0 &&
                        !find_arg(op.signature, arg.name.text);
    if (!output) args.push_back(&arg);
  }
  return args;
}

bool is_written_input(const Op& op, int input, Form form) {
  return form == Form::inplace && inplace_pair_of_input(op, input) != nullptr;
}

Texts written_inputs(const Op& op, Form form) {
  Texts names;
  for (size_t i = 0; i < op.signature.inputs.size(); ++i) {
    const std::string& name = op.signature.inputs[i].name.text;
    const bool view = std::any_of(op.view.begin(), op.view.end(), [&](const AliasPair& pair) {
      return pair.input.text == name && view_kind(op, find_output(op.signature, pair.output.text)) == ViewKind::written;
    });
    if (view || is_written_input(op, static_cast<int>(i), form)) names.push_back(name);
  }
  return names;
}

Texts parameters(const Op& op, Role role, Form form, bool defaults) {
  Texts texts;
  const size_t with_default = defaults ? first_default(op) : op.signature.args.size();
  for (size_t i = 0; i < op.signature.args.size(); ++i) {
    const ArgRef arg = op.signature.args[i];
    if (arg.tensor) {
      const Input& input = op.signature.inputs[arg.index];
      texts.push_back(input_type(input, role, is_written_input(op, arg.index, form)) + " " + input.name.text);
      continue;
    }
    const Attr& attr = op.signature.attrs[arg.index];
    std::string text = attr_type(op, attr) + " " + attr.name.text;
    if (i >= with_default) text += " = " + *default_argument(op, attr);
    texts.push_back(std::move(text));
  }
  return texts;
}

bool takes_layout(const LowerContext& context, const Op& op) {
  return context.runtime.dist && op.signature.inputs.empty() && context.selection.end_of(op) != nullptr;
}

std::string layout_name(const Op& op) { return Scope(op).local("layout"); }

Texts with_layout(const Op& op, Texts args, const std::string& layout) {
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(first_default(op)), layout);
  return args;
}

Texts layout_parameters(const Op& op, bool defaults) {
  return with_layout(op, parameters(op, Role::api, Form::functional, defaults),
                     rt("LayoutArg") + " " + layout_name(op));
}

std::vector<int> returned_outputs(const Op& op, bool all) {
  std::vector<int> outputs;
  for (int i = 0; i < static_cast<int>(op.signature.outputs.size()); ++i) {
    if (all || !contains(op.intermediate, op.signature.outputs[i].name.text)) outputs.push_back(i);
  }
  return outputs;
}

std::string return_type(const Op& op, Form form, bool all) {
  Texts types;
  for (const int output : returned_outputs(op, all)) {
    const bool written = form == Form::inplace && inplace_pair_of_output(op, output) != nullptr;
    types.push_back(output_type(op.signature.outputs[output], Role::api) + (written ? "&" : ""));
  }
  return tuple_of(types);
}

std::string location_of(const Op& op) { return base_name(op.name.at.file); }

int local_shape_output(const Op& op) {
  return op.infer_meta->global_shape ? find_output(op.signature, op.infer_meta->global_shape->text) : 0;
}

Json file_head(const Part& part) { return {{"source", part.source}, {"name", part.name}}; }

std::vector<Form> forms_of(const LowerContext& context, const Op& op) {
  if (is_inplace_only(op)) return {Form::inplace};
  if (context.selection.has_inplace_form(op)) return {Form::functional, Form::inplace};
  return {Form::functional};
}

std::string return_value(const Texts& texts) {
  if (texts.empty()) return "";
  return texts.size() == 1 ? texts[0] : "{" + join(texts) + "}";
}

bool returns_arguments(const Op& op) {
  const std::vector<int> returned = returned_outputs(op, false);
  return std::all_of(returned.begin(), returned.end(),
                     [&](int output) { return inplace_pair_of_output(op, output) != nullptr; });
}

std::string written_result(const Op& op) {
  Texts results;
  for (const int output : returned_outputs(op, false))
    results.push_back(inplace_pair_of_output(op, output)->input.text);
  return return_value(results);
}

Texts arg_names(const Op& op) {
  Texts names;
  for (const ArgRef arg : op.signature.args) names.push_back(name_of(op.signature, arg).text);
  return names;
}

Texts tensor_names(const Op& op) {
  Texts names;
  for (const Input& input : op.signature.inputs) names.push_back(input.name.text);
  return names;
}

std::vector<const Op*> own_ops(const Part& part) {
  std::vector<const Op*> ops;
  for (const Op* op : part.ops) {
    if (has_body(*op)) ops.push_back(op);
  }
  return ops;
}

std::string function_name(const Op& op, Form form) { return form == Form::inplace ? inplace_name(op) : cpp_name(op); }

}  // namespace shardgen

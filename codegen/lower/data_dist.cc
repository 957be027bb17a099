// Template data of the dist layer: slots, plan, the dense call on local shards, outputs.
#include <fmt/format.h>

#include "lower/data_common.h"
#include "lower/gradients.h"
#include "lower/identifiers.h"

namespace shardgen {
namespace {

std::string local_arg(const Op& op, const std::string& call, Form form, ArgRef arg) {
  if (!arg.tensor) {
    const std::string& name = op.signature.attrs[arg.index].name.text;
    const bool is_local_shape = op.infer_meta->local_shape && op.infer_meta->local_shape->text == name;
    if (is_local_shape) return fmt::format("{}.local_shape({})", call, local_shape_output(op));
    // A kernel of arguments that are held in float32 returns float32 results.
    const bool is_dtype = !op.signature.inputs.empty() && op.signature.attrs[arg.index].type == AttrType::dtype;
    return is_dtype ? fmt::format("{}.local_dtype({})", call, name) : name;
  }
  if (is_written_input(op, arg.index, form))
    return fmt::format("{}.{}({})", call, op.signature.inputs[arg.index].list ? "targets" : "target", arg.index);
  return op.signature.inputs[arg.index].list ? fmt::format("{}.locals({})", call, arg.index)
                                             : fmt::format("{}[{}]", call, arg.index);
}

/// The context and the metas of the outputs.
Texts first_args(const Op& op, const std::string& call) {
  Texts args = {call};
  for (size_t i = 0; i < op.signature.outputs.size(); ++i) {
    const Output& output = op.signature.outputs[i];
    const char* member = output.list ? "metas" : has_dynamic_shape(op, output) ? "dynamic_meta" : "meta";
    args.push_back(fmt::format("{}.{}({})", call, member, i));
  }
  return args;
}

std::string local_args(const Op& op, const std::string& call, Form form) {
  Texts args = first_args(op, call);
  for (const ArgRef arg : op.signature.args) args.push_back(local_arg(op, call, form, arg));
  return join(args);
}

/// True when the only output is another shape of input 0: the runtime handles that without a dense
/// call.
bool only_reinterprets(const Op& op) {
  if (op.signature.outputs.size() != 1 || view_kind(op, 0) != ViewKind::reinterpreting) return false;
  return find_input(op.signature, op.view[0].input.text) == 0;
}

/// The dense call, if there is one: its lambda returns nothing, one value, or several.
Json run_data(const Op& op, const DensePlan& plan, const std::string& args, Scope& scope) {
  Json run = {{"infer", cpp_name(op)}, {"reinterpret", false}, {"direct_reinterpret", false},
              {"none", false},         {"direct", false},      {"one", false},
              {"several", false}};
  if (only_reinterprets(op)) {
    run[plan.form == Form::functional ? "direct_reinterpret" : "reinterpret"] = true;
  } else if (plan.form == Form::functional) {
    run["direct"] = {{"dense_args", args}};
  } else if (plan.returns.empty()) {
    run["none"] = {{"dense_args", args}};
  } else if (plan.returns.size() == 1) {
    run["one"] = {{"slot", plan.returns[0]}, {"dense_args", args}};
  } else {
    Json sets = Json::array();
    Texts locals;
    for (const int output : plan.returns) {
      locals.push_back(scope.local(op.signature.outputs[output].name.text));
      sets.push_back({{"slot", output}, {"local", locals.back()}});
    }
    run["several"] = {{"locals", join(locals)}, {"dense_args", args}, {"sets", std::move(sets)}};
  }
  return run;
}

/// The value that an in-place form returns.
std::string written_and_new(const Op& op, const std::string& call) {
  Texts texts;
  for (const int output : returned_outputs(op, true)) {
    const AliasPair* pair = inplace_pair_of_output(op, output);
    texts.push_back(pair != nullptr ? pair->input.text
                                    : fmt::format("{}.{}({})", call,
                                                  op.signature.outputs[output].list ? "outputs" : "output", output));
  }
  return return_value(texts);
}

std::string parameters_of(const Op& op, Form form) {
  return parameter_list(op, parameters(op, Role::api, form, false));
}

std::string layout_parameters_of(const Op& op) { return parameter_list(op, layout_parameters(op, false)); }

/// A declaration that is written out.
Json declaration(const Op& op, Form form, const std::string& params) {
  const Json written = {{"returns", return_type(op, form, true)}, {"params", params}};
  return {{"name", function_name(op, form)}, {"declared", {{"same", false}, {"written", written}}}};
}

/// The declaration of a form: by the type of the public function, where that takes the same arguments.
Json form_declaration(const LowerContext& context, const Op& op, Form form) {
  const bool hides = !op.intermediate.empty();
  if (takes_site(context, op, form) || (form == Form::inplace && hides) || context.selection.has_overload(op))
    return declaration(op, form, parameters_of(op, form));
  const std::string same = hides ? intermediate_name(op) : function_name(op, form);
  return {{"name", function_name(op, form)}, {"declared", {{"same", {{"public", same}}}, {"written", false}}}};
}

Json definition(const Op& op, Form form) {
  const DensePlan plan = plan_dense(op, form);
  Scope scope(op);
  const std::string call = scope.local("call");
  Texts collect;
  if (form == Form::inplace) collect.push_back(rt("call::inplace"));
  collect.push_back(rt("ops") + "::" + cpp_name(op));
  for (const ArgRef arg : op.signature.args) collect.push_back(name_of(op.signature, arg).text);
  Json result = false;
  if (form == Form::inplace) result = written_and_new(op, call);
  return {{"returns", return_type(op, form, true)},
          {"name", function_name(op, form)},
          {"params", parameters_of(op, form)},
          {"call", call},
          {"collect", join(collect)},
          {"run", run_data(op, plan, local_args(op, call, form), scope)},
          {"result", std::move(result)}};
}

/// An op without tensor arguments: the dense function makes local shards, but its arguments are
/// those of the whole tensor.
Json layout_definition(const Op& op) {
  Scope scope(op);
  const std::string layout = scope.local("layout");
  const std::string call = scope.local("call");
  Texts collect = {layout, rt("ops") + "::" + cpp_name(op)};
  Texts args = first_args(op, call);
  for (const Attr& attr : op.signature.attrs) {
    collect.push_back(attr.name.text);
    args.push_back(attr.name.text);
  }
  Json run = {{"infer", cpp_name(op)}, {"reinterpret", false}, {"direct_reinterpret", false},
              {"none", false},         {"one", false},         {"several", false}};
  run["direct"] = {{"dense_args", join(args)}};
  return {{"returns", return_type(op, Form::functional, true)},
          {"name", cpp_name(op)},
          {"params", layout_parameters_of(op)},
          {"call", call},
          {"collect", join(collect)},
          {"run", std::move(run)},
          {"result", false}};
}

}  // namespace

Json dist_header_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["functions"] = items_of(own_ops(part), [&](const Op& op, Json& functions) {
    if (takes_layout(context, op)) functions.push_back(declaration(op, Form::functional, layout_parameters_of(op)));
    if (op.signature.inputs.empty()) return;
    for (const Form form : forms_of(context, op)) functions.push_back(form_declaration(context, op, form));
  });
  return data;
}

Json dist_source_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["functions"] = items_of(own_ops(part), [&](const Op& op, Json& functions) {
    if (takes_layout(context, op)) functions.push_back(layout_definition(op));
    if (op.signature.inputs.empty()) return;
    for (const Form form : forms_of(context, op)) functions.push_back(definition(op, form));
  });
  return data;
}

}  // namespace shardgen

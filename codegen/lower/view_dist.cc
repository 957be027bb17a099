// The dist layer's view: slots, plan, the dense call on local tensors, outputs.
#include <fmt/format.h>

#include "lower/identifiers.h"
#include "lower/view_common.h"

namespace shardgen {
namespace {

std::string meta_arg(const Op& op, const std::string& call, const Passed& passed) {
  if (!passed.arg) return passed_constant(passed);
  const ArgRef arg = *passed.arg;
  if (passed.dtype_of) return fmt::format("{}.meta({}).dtype", call, arg.index);
  if (!arg.tensor) return op.signature.attrs[arg.index].name.text;
  const Input& input = op.signature.inputs[arg.index];
  if (input.list) return fmt::format("{}.metas({})", call, arg.index);
  return fmt::format("{}.{}({})", call, contains(op.optional, input.name.text) ? "optional_meta" : "meta", arg.index);
}

/// The arguments of infer_meta: inputs, attributes, then the outputs of `out`.
std::string meta_args(const Op& op, const std::string& call, const std::string& out) {
  Texts args = {call + ".context()"};
  for (const Passed& each : resolve_params(op, infer_meta_params(op))) args.push_back(meta_arg(op, call, each));
  for (size_t i = 0; i < op.signature.outputs.size(); ++i) {
    args.push_back(fmt::format("{}.{}({})", out, op.signature.outputs[i].list ? "list" : "one", i));
  }
  return join(args);
}

/// The output whose shape a local shape is.
int local_shape_output(const Op& op) {
  return op.infer_meta->global_shape ? find_output(op.signature, op.infer_meta->global_shape->text) : 0;
}

std::string dense_arg(const Op& op, const std::string& call, Form form, ArgRef arg) {
  if (!arg.tensor) {
    const std::string& name = op.signature.attrs[arg.index].name.text;
    const bool is_local_shape = op.infer_meta->local_shape && op.infer_meta->local_shape->text == name;
    return is_local_shape ? fmt::format("{}.local_shape({})", call, local_shape_output(op)) : name;
  }
  if (is_written_input(op, arg.index, form))
    return fmt::format("{}.{}({})", call, op.signature.inputs[arg.index].list ? "targets" : "target", arg.index);
  return fmt::format("{}.{}({})", call, op.signature.inputs[arg.index].list ? "locals" : "local", arg.index);
}

std::string dense_args(const Op& op, const std::string& call, Form form) {
  Texts args = {call + ".context()"};
  for (const ArgRef arg : op.signature.args) args.push_back(dense_arg(op, call, form, arg));
  return join(args);
}

/// True when the only output is another shape of input 0: the runtime does that without a dense call.
bool only_reinterprets(const Op& op) {
  if (op.signature.outputs.size() != 1 || view_kind(op, 0) != ViewKind::reinterpreting) return false;
  return find_input(op.signature, op.view[0].input.text) == 0;
}

/// The dense call, where there is one: its results are handed over as nothing, one value, or several.
Json run_view(const Op& op, const DensePlan& plan, const std::string& args, Scope& scope) {
  Json run = {{"reinterpret", false}, {"none", false}, {"one", false}, {"several", false}};
  if (only_reinterprets(op)) {
    run["reinterpret"] = true;
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

std::string dist_result(const Op& op, const std::string& call, Form form) {
  Texts texts;
  for (const int output : returned_outputs(op, form == Form::functional)) {
    const AliasPair* pair = form == Form::inplace ? inplace_pair_of_output(op, output) : nullptr;
    texts.push_back(pair != nullptr
                        ? pair->input.text
                        : fmt::format("{}.{}({})", call, op.signature.outputs[output].list ? "outputs" : "output", output));
  }
  return return_value(texts);
}

Json function_view(const Op& op, Form form) {
  const DensePlan plan = plan_dense(op, form);
  Scope scope(op);
  const std::string call = scope.local("call");
  const std::string out = scope.local("out");
  Json inputs = Json::array();
  for (const Input& input : op.signature.inputs) inputs.push_back({{"input", input.name.text}});
  Json attrs = Json::array();
  for (const ArgRef arg : op.signature.args) {
    if (!arg.tensor) attrs.push_back({{"attr", op.signature.attrs[arg.index].name.text}});
  }
  return {{"origin", origin(op)},
          {"returns", return_type(op, form, form == Form::functional)},
          {"name", function_name(op, form)},
          {"op", cpp_name(op)},
          {"inplace", form == Form::inplace},
          {"params", join(parameters(op, Role::api, form, false))},
          {"call", call},
          {"out", out},
          {"inputs", std::move(inputs)},
          {"attrs", std::move(attrs)},
          {"func", op.infer_meta->func->text},
          {"meta_args", meta_args(op, call, out)},
          {"run", run_view(op, plan, dense_args(op, call, form), scope)},
          {"result", dist_result(op, call, form)}};
}

}  // namespace

Json dist_view(const LowerContext& context, const Part& part) {
  Json functions = Json::array();
  for (const Op* op : own_ops(part)) {
    if (op->signature.inputs.empty() || !context.runtime.dist) continue;
    for (const Form form : forms_of(context, *op)) functions.push_back(function_view(*op, form));
  }
  Json view = file_head(part);
  view["functions"] = std::move(functions);
  return view;
}

}  // namespace shardgen

// Makes the views of templates/scaffold/.
#include "reference/scaffold.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "emit/layout.h"
#include "emit/template.h"
#include "emit/templates.h"
#include "lower/identifiers.h"
#include "lower/view_common.h"
#include "model/print.h"
#include "core/axis_expr.h"

namespace shardgen {
namespace {

/// Parameters of a function: each with its type, and the names alone.
struct Params {
  Texts typed;
  Texts names;

  void add(const std::string& type, const std::string& name) {
    typed.push_back(type + " " + name);
    names.push_back(name);
  }
};

/// What the YAML passes on to a function; `input` spells the type of a tensor.
template <class InputType>
Params passed_params(const Op& op, const std::vector<Passed>& passed, Scope& scope, InputType input) {
  Params params;
  params.add("const " + rt("OpContext") + "&", scope.local("ctx"));
  for (const Passed& each : passed) {
    if (!each.arg) {
      params.add(constant_type(each.constant), scope.local("constant"));
    } else if (each.dtype_of) {
      params.add(rt("DType"), scope.local(name_of(op.signature, *each.arg).text + "_dtype"));
    } else if (each.arg->tensor) {
      params.add(input(op.signature.inputs[each.arg->index]), name_of(op.signature, *each.arg).text);
    } else {
      params.add(attr_type(op, op.signature.attrs[each.arg->index]), name_of(op.signature, *each.arg).text);
    }
  }
  return params;
}

Params kernel_params_of(const Op& op) {
  Scope scope(op);
  Params params = passed_params(op, resolve_params(op, kernel_params(op)), scope,
                                [](const Input& input) { return input_type(input, Role::kernel, false); });
  if (is_random(op)) params.add(rt("RandomKey"), scope.local("key"));
  for (const Output& output : op.signature.outputs)
    params.add(output_type(output, Role::kernel), scope.local(output.name.text));
  return params;
}

Json head(const Op& op) {
  return {{"op", op.name.text}, {"location", location_of(op)}, {"signature", to_string(op.name.text, op.signature)}};
}

Json kernel_view(const Op& op) {
  const Params params = kernel_params_of(op);
  Json view = head(op);
  view["infer_meta"] = op.infer_meta->func->text;
  view["kernel"] = dense_kernel(op)->name.text;
  view["params"] = join(params.typed);
  view["names"] = join(params.names);
  return view;
}

Json infer_meta_view(const Op& op) {
  Scope scope(op);
  Params params = passed_params(op, resolve_params(op, infer_meta_params(op)), scope, [&](const Input& input) {
    return meta_input_type(input, contains(op.optional, input.name.text));
  });
  // The first guess: every output is like the first argument, where that is a tensor that must be given.
  const bool plain = params.typed.size() > 1 && params.typed[1] == meta_input_type({}, false) + " " + params.names[1];
  Json copied = plain ? Json{{"outputs", Json::array()}} : Json(false);
  for (const Output& output : op.signature.outputs) {
    const std::string name = scope.local(output.name.text);
    params.add(meta_type(output) + "&", name);
    if (plain) copied["outputs"].push_back({{"output", name}, {"from", output.list ? "{" + params.names[1] + "}" : params.names[1]}});
  }
  Json view = head(op);
  view["infer_meta"] = op.infer_meta->func->text;
  view["params"] = join(params.typed);
  view["names"] = join(params.names);
  view["copied"] = std::move(copied);
  return view;
}

Json rule_view(const Op& op) {
  Json view = head(op);
  view["rule"] = op.infer_meta->spmd_rule->text;
  return view;
}

/// A value to call a function with, for an attribute without a default.
std::string sample(const Op& op, const Attr& attr) {
  if (attr.default_value && !may_be_open(op, attr)) {
    if (const std::optional<std::string> value = default_argument(op, attr)) return *value;
  }
  switch (attr.type) {
    case AttrType::boolean: return "false";
    case AttrType::int32:
    case AttrType::int64:
    case AttrType::float32:
    case AttrType::float64:
    case AttrType::scalar: return "1";
    case AttrType::str: return "\"\"";
    case AttrType::dtype: return data_type(DataType::float32);
    case AttrType::place: return rt("kCpu");
    case AttrType::int_array:
    case AttrType::boolean_list:
    case AttrType::int32_list:
    case AttrType::int64_list:
    case AttrType::float32_list:
    case AttrType::float64_list:
    case AttrType::str_list:
    case AttrType::scalar_list:
    case AttrType::unknown: return "{}";
  }
  return "{}";
}

std::string first_of(const Op& op, Form form) {
  const std::vector<int> returned = returned_outputs(op, false);
  const bool list = op.signature.outputs[static_cast<size_t>(returned[0])].list;
  std::string text = returned.size() == 1 ? "result" : "std::get<0>(result)";
  return list && form == Form::functional ? text + ".front()" : text;
}

Json test_view(const LowerContext& context, const Op& op, const std::string& header) {
  const Form form = op.invoke ? Form::functional : forms_of(context, op).front();
  Json tensors = Json::array();
  Texts arguments;
  for (const ArgRef arg : op.signature.args) {
    const std::string& name = name_of(op.signature, arg).text;
    if (!arg.tensor) {
      arguments.push_back(sample(op, op.signature.attrs[arg.index]));
    } else if (contains(op.optional, name)) {
      arguments.push_back(op.signature.inputs[arg.index].list || !is_written_input(op, arg.index, form) ? "{}" : name);
      if (arguments.back() == name) tensors.push_back({{"name", name}, {"spread_too", true}});
    } else {
      tensors.push_back({{"name", name}, {"spread_too", true}});
      arguments.push_back(op.signature.inputs[arg.index].list ? "{" + name + "}" : name);
    }
  }
  Json view = {{"op", op.name.text},  {"location", location_of(op)},         {"header", header},
               {"function", op.invoke ? op.name.text : function_name(op, form)}, {"spread", !tensors.empty()},
               {"arguments", join(arguments)}, {"first", first_of(op, form)}};
  view["tensors"] = std::move(tensors);
  return view;
}

/// The axis expression of an op in which elements meet one by one, or nothing where lists make that unlikely.
std::string proposed_rule(const Op& op) {
  const Signature& signature = op.signature;
  Texts inputs(signature.inputs.size(), "..."), outputs(signature.outputs.size(), "...");
  return join(inputs) + " -> " + join(outputs);
}

}  // namespace

Scaffold scaffold(const LowerContext& context, const Op& op, const std::string& header) {
  Scaffold result;
  const auto add = [&](const std::string& what, const Json& view) {
    const std::string name = what + ".cc.mustache";
    result.files[fmt::format("{}_{}.cc", op.name.text, what)] =
        lay_out(spell_own(Template(name, text_of(embedded_skeletons(), name)).render(view, result.problems)));
  };
  if (!op.invoke) {
    const std::string& func = op.infer_meta->func->text;
    add("infer_meta", infer_meta_view(op));
    result.next.push_back(fmt::format("Declare '{}' in runtime/meta/infer_meta.h and write it.", func));
    const DensePlan plan = plan_dense(op, forms_of(context, op).front());
    if (std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) { return std::holds_alternative<KernelStep>(step); })) {
      add("kernel", kernel_view(op));
      result.next.push_back(fmt::format("Write the kernel '{0}'; declare register_{0}() in runtime/kernels/cpu/register.h and call it in "
                                        "runtime/kernels/builtin.cc.", dense_kernel(op)->name.text));
    }
    if (!op.infer_meta->spmd_rule && !op.signature.inputs.empty()) {
      result.next.push_back(fmt::format("Give the op a placement rule, under 'infer_meta': spmd_rule : \"{}\" when elements meet one by one; "
                                        "docs/rules.md has the others.", proposed_rule(op)));
    } else if (op.infer_meta->spmd_rule && !shard::is_axis_expr(op.infer_meta->spmd_rule->text)) {
      add("rule", rule_view(op));
      result.next.push_back(fmt::format("Write the rule '{}' and call register_{}_rule() from runtime/spmd/.",
                                        op.infer_meta->spmd_rule->text, op.name.text));
    }
  }
  add("test", test_view(context, op, header));
  result.next.push_back("Run cmake --build build-dev -t regenerate, fill in the values that the test expects, and run it.");
  return result;
}

}  // namespace shardgen

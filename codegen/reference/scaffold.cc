// Makes the data of templates/scaffold/.
#include "reference/scaffold.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "emit/layout.h"
#include "emit/template.h"
#include "emit/templates.h"
#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/identifiers.h"
#include "lower/rules.h"
#include "model/print.h"

namespace shardgen {
namespace {

/// Parameters of a function: with their types, and the names alone.
struct Params {
  Texts typed;
  Texts names;

  void add(const std::string& type, const std::string& name) {
    typed.push_back(type + " " + name);
    names.push_back(name);
  }
};

/// The names of the arguments that the YAML passes to a function, after the context.
Texts passed_names(const Op& op, const std::vector<Passed>& passed, Scope& scope) {
  Texts names = {scope.local("ctx")};
  for (const Passed& each : passed) {
    if (!each.arg) names.push_back(scope.local("constant"));
    else if (each.dtype_of) names.push_back(scope.local(name_of(op.signature, *each.arg).text + "_dtype"));
    else names.push_back(name_of(op.signature, *each.arg).text);
  }
  return names;
}

std::string kernel_type(const Op& op, const Passed& passed) {
  if (!passed.arg) return constant_type(passed.constant);
  if (passed.dtype_of) return rt("DType");
  return passed.arg->tensor ? input_type(op.signature.inputs[passed.arg->index], Role::kernel, false)
                            : attr_type(op, op.signature.attrs[passed.arg->index]);
}

Params kernel_params_of(const Op& op) {
  Scope scope(op);
  const std::vector<Passed> passed = resolve_params(op, kernel_params(op));
  const Texts names = passed_names(op, passed, scope);
  Params params;
  params.add("const " + rt("OpContext") + "&", names[0]);
  for (size_t i = 0; i < passed.size(); ++i) params.add(kernel_type(op, passed[i]), names[i + 1]);
  if (is_random(op)) params.add(rt("RandomKey"), scope.local("key"));
  for (const Output& output : op.signature.outputs)
    params.add(output_type(output, Role::kernel), scope.local(output.name.text));
  return params;
}

Json head(const Op& op) {
  return {{"op", op.name.text}, {"location", location_of(op)}, {"signature", to_string(op.name.text, op.signature)}};
}

Json kernel_data(const Op& op) {
  const Params params = kernel_params_of(op);
  Json data = head(op);
  data["infer_meta"] = op.infer_meta->func->text;
  data["kernel"] = dense_kernel(op)->name.text;
  data["params"] = join(params.typed);
  data["names"] = join(params.names);
  return data;
}

Json infer_meta_data(const Op& op) {
  Scope scope(op);
  const FunctionDecl function = infer_meta_function(op);
  Texts names = passed_names(op, resolve_params(op, infer_meta_params(op)), scope);
  // The first guess: every output is like the first argument, if that is a tensor that is always
  // present.
  const bool plain = names.size() > 1 && function.params[1] == "const " + rt("Meta") + "&";
  Json copied = plain ? Json{{"outputs", Json::array()}} : Json(false);
  for (const Output& output : op.signature.outputs) {
    names.push_back(scope.local(output.name.text));
    if (plain)
      copied["outputs"].push_back({{"output", names.back()}, {"from", output.list ? "{" + names[1] + "}" : names[1]}});
  }
  Params params;
  for (size_t i = 0; i < names.size(); ++i) params.add(function.params[i], names[i]);
  Json data = head(op);
  data["space"] = rt(function.space) + (function.nested.empty() ? "" : "::" + function.nested);
  data["infer_meta"] = function.name;
  data["params"] = join(params.typed);
  data["names"] = join(params.names);
  data["copied"] = std::move(copied);
  return data;
}

Json rule_data(const Op& op) {
  Json data = head(op);
  data["rule"] = op.infer_meta->spmd_rule->text;
  return data;
}

/// A value for an attribute without a default, for a call of a function.
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

Json test_data(const LowerContext& context, const Op& op, const std::string& header) {
  const Form form = has_body(op) ? forms_of(context, op).front() : Form::functional;
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
  Json data = {{"op", op.name.text},         {"location", location_of(op)},
               {"header", header},           {"function", has_body(op) ? function_name(op, form) : api_name(op)},
               {"spread", !tensors.empty()}, {"arguments", join(arguments)},
               {"first", first_of(op, form)}};
  data["tensors"] = std::move(tensors);
  return data;
}

/// The axis expression of an elementwise op.
std::string proposed_rule(const Op& op) {
  Texts inputs, outputs;
  for (const Input& input : op.signature.inputs) inputs.push_back(input.list ? "[...]" : "...");
  for (const Output& output : op.signature.outputs) outputs.push_back(output.list ? "[...]" : "...");
  return join(inputs) + " -> " + join(outputs);
}

/// Adds the skeletons of an op one after another; functions that the runtime has are skipped.
class Builder {
 public:
  Builder(const LowerContext& context, const Op& op, ScaffoldPlace place)
      : context_(context), op_(op), place_(std::move(place)) {}

  /// `from`: the template, if its name differs from that of the file.
  void add(const std::string& what, const Json& data, const std::string& from = "") {
    const std::string name = (from.empty() ? what : from) + ".cc.mustache";
    const Template skeleton(name, mark_symbols(text_of(embedded_skeletons(), name)));
    skeleton.check(data, result_.problems);
    const std::string text = skeleton.render(data);
    missing_.merge(missing_symbols(context_.runtime, text));
    result_.files[fmt::format("{}_{}.cc", op_.name.text, what)] = lay_out(spell_symbols(context_.runtime, text));
  }

  void add_infer_meta() {
    const FunctionDecl function = infer_meta_function(op_);
    if (context_.runtime.infer_meta.contains(spell_symbols(context_.runtime, function.signature()))) return;
    add("infer_meta", infer_meta_data(op_));
    const std::string& name = op_.infer_meta->func->text;
    if (place_.in_library) next(fmt::format("Declare '{}' in runtime/shard/meta/infer_meta.h and write it.", name));
    else
      next(fmt::format("Write '{}', which {}_ops.h declares, and compile it with your program.", name, place_.header));
  }

  void add_kernel() {
    const DensePlan plan = plan_dense(op_, forms_of(context_, op_).front());
    const auto found = std::find_if(plan.steps.begin(), plan.steps.end(),
                                    [](const Step& step) { return std::holds_alternative<KernelStep>(step); });
    if (found == plan.steps.end() || context_.runtime.kernels.contains(dense_kernel(op_)->name.text)) return;
    add("kernel", kernel_data(op_));
    const std::string& kernel = dense_kernel(op_)->name.text;
    to_call("shard::cpu", "register_" + kernel);
    if (place_.in_library) {
      next(fmt::format(
          "Write the kernel '{0}'; declare register_{0}() in runtime/shard/kernels/cpu/register.h and call it in "
          "runtime/shard/kernels/builtin.cc.",
          kernel));
    } else {
      next(
          fmt::format("Write the kernel '{0}' for the dtypes that it takes, and call shard::cpu::register_{0}() before "
                      "the first op.",
                      kernel));
    }
  }

  void add_rule() {
    if (op_.signature.inputs.empty() || op_.infer_meta->expression) return;
    if (!op_.infer_meta->spmd_rule) {
      if (const std::optional<std::string> derived = rule_of(context_.selection, op_)) {
        next(fmt::format("The placement rule is derived from that of '{}': {}.", op_.forward->name.text, *derived));
        return;
      }
      next(
          fmt::format("Give the op a placement rule, under 'infer_meta': spmd_rule : \"{}\" for an elementwise op; "
                      "docs/rules.md has the others.",
                      proposed_rule(op_)));
    } else if (!context_.runtime.rules.contains(op_.infer_meta->spmd_rule->text)) {
      add("rule", rule_data(op_));
      to_call("shard::spmd", fmt::format("register_{}_rule", op_.name.text));
      next(fmt::format("Write the rule '{}' and call {}register_{}_rule() {}.", op_.infer_meta->spmd_rule->text,
                       place_.in_library ? "" : "shard::spmd::", op_.name.text,
                       place_.in_library ? "from runtime/shard/spmd/" : "before the first op"));
    }
  }

  /// A test among those of the library, or a program of its own.
  void add_test() {
    Json data = test_data(context_, op_, place_.header);
    if (place_.in_library) {
      add("test", data);
      next("Run cmake --build build-dev -t regenerate, fill in the values that the test expects, and run it.");
      return;
    }
    data["spaces"] = calls_;
    add("test", data, "program");
    next(
        fmt::format("Fill in the values that {0}_test.cc expects, build it with the other files and "
                    "shardgen_generate(... YAML {1}), and run it.",
                    op_.name.text, location_of(op_)));
  }

  void to_call(const std::string& space, const std::string& function) {
    calls_.push_back({{"space", space}, {"register", function}});
  }
  void next(const std::string& sentence) { result_.next.push_back(sentence); }
  Scaffold result() {
    for (const std::string& symbol : missing_)
      result_.problems.push_back(op_.name.text + ": " + describe_missing(symbol));
    return std::move(result_);
  }

 private:
  const LowerContext& context_;
  const Op& op_;
  ScaffoldPlace place_;
  Json calls_ = Json::array();  // the calls that register kernels and rules
  Scaffold result_;
  std::set<std::string> missing_;  // symbols that the runtime lacks
};

}  // namespace

Scaffold scaffold(const LowerContext& context, const Op& op, const ScaffoldPlace& place) {
  Builder builder(context, op, place);
  if (has_body(op)) {
    builder.add_infer_meta();
    builder.add_kernel();
    builder.add_rule();
  }
  builder.add_test();
  return builder.result();
}

}  // namespace shardgen

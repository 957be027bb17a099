// Template data of the public layer: dispatch to dist or dense, functions that pick from the one with
// intermediates, and invokes.
#include <fmt/format.h>

#include <set>

#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/gradients.h"
#include "lower/identifiers.h"

namespace shardgen {
namespace {

std::string dense_arg(const Op& op, const std::string& ctx, Form form, ArgRef arg) {
  if (!arg.tensor) return op.signature.attrs[arg.index].name.text;
  const Input& input = op.signature.inputs[arg.index];
  const std::string& name = input.name.text;
  std::string function = is_written_input(op, arg.index, form) ? "write" : "read";
  if (input.list) {
    function += "_list";
  } else if (contains(op.optional, name)) {
    function += "_optional";
  }
  return fmt::format("{}({}, {}, \"{}\")", rt("call::" + function), ctx, name, name);
}

std::string mask_name(const Op& op) { return Scope(op).local("wanted"); }

/// A function of this layer: of a form of the op, of the form that takes a layout, or of the form
/// that takes a mask.
struct Shape {
  Form form = Form::functional;
  bool layout = false;
  bool mask = false;
  bool site = false;  // takes a call site

  Texts params(const Op& op, bool defaults) const {
    if (layout) return layout_parameters(op, defaults);
    Texts params = parameters(op, Role::api, form, defaults);
    if (mask) params.push_back(rt("GradMask") + " " + mask_name(op) + (defaults ? " = {}" : ""));
    if (site) params.push_back(rt("CallSite") + " " + site_name(op) + (defaults ? " = " + rt("CallSite::here") : ""));
    return params;
  }
  /// `args` of the op as they are passed on to another public function, including the layout.
  std::string args(const Op& op, Texts args) const {
    if (site) args.push_back(site_name(op));
    return join(layout ? with_layout(op, std::move(args), layout_name(op)) : args);
  }
};

/// One function of this layer.
struct Function {
  std::string name;
  std::string returns;
  Shape shape;
  bool picks = false;  // calls the function with intermediates, and returns the other outputs
};

/// The results of a call: arguments that it wrote, and new ones.
struct Results {
  Texts locals;          // of the new ones, including those that the user does not get
  Texts returned;        // what the user gets
  bool any_new = false;  // whether there are new ones
};

/// `dense`: the call returns dense tensors, which must be wrapped.
Results results_of(const Op& op, Form form, bool dense, Scope& scope) {
  Results results;
  const bool one = returned_outputs(op, form == Form::functional).size() == 1;
  for (const int output : returned_outputs(op, true)) {
    const std::string& name = op.signature.outputs[output].name.text;
    const bool hidden = form == Form::inplace && contains(op.intermediate, name);
    const AliasPair* pair = form == Form::inplace ? inplace_pair_of_output(op, output) : nullptr;
    if (pair == nullptr) results.locals.push_back(scope.local(name));
    if (hidden) continue;
    results.any_new |= pair == nullptr;
    const std::string moved = pair != nullptr ? pair->input.text : "std::move(" + results.locals.back() + ")";
    if (pair == nullptr && dense) results.returned.push_back(rt("call::wrap") + "(" + moved + ")");
    else results.returned.push_back(pair == nullptr && one ? results.locals.back() : moved);
  }
  return results;
}

/// "auto x = ", if the user gets something of what the call returns.
std::string receive(const Results& results) {
  if (!results.any_new) return "";
  return "auto " + (results.locals.size() == 1 ? results.locals[0] : "[" + join(results.locals) + "]") + " = ";
}

/// A call without the runtime's dispatch: each argument is read or written, and each result
/// wrapped.
Json plain_data(const Op& op, Form form) {
  Scope scope(op);
  const std::string ctx = scope.local("ctx");
  const Results results = results_of(op, form, true, scope);
  Texts args = {ctx};
  for (const ArgRef arg : op.signature.args) args.push_back(dense_arg(op, ctx, form, arg));
  Json data = {{"function", function_name(op, form)}, {"ctx", ctx}, {"dense_args", join(args)}, {"after", ""}};
  if (form == Form::functional && results.locals.size() == 1) {
    data["before"] = "return " + rt("call::wrap") + "(";
    data["after"] = ")";
    data["result"] = false;
  } else {
    data["before"] = receive(results);
    data["result"] = return_value(results.returned);
  }
  return data;
}

std::string external_arg(const CallArg& arg) {
  switch (arg.kind) {
    case CallArg::Kind::name: return arg.name.text;
    case CallArg::Kind::dtype_of: return rt("tensor_dtype_of", arg.name.text);
    case CallArg::Kind::literal: break;
  }
  return spell(arg.literal).value_or(arg.literal.spelling);
}

/// The call of a C++ function, without the output arguments.
std::pair<std::string, Texts> external_target(const Op& op, const Call& call) {
  Texts args;
  for (const CallArg* arg : passed_in(op, call)) args.push_back(external_arg(*arg));
  return {rt("external") + "::" + call.function.text, std::move(args)};
}

/// How the call is recorded: by the function of the autograd layer, by the composite whose ops are
/// recorded, or, if the op has no gradient, by a step through which backward is an error.
Json recording_data(const LowerContext& context, const Op& op, Form form) {
  Json data = {{"recorded", false}, {"guarded", false}, {"writes", false}};
  const std::string tensors = join(tensor_names(op));
  if (!context.runtime.autograd || tensors.empty()) return data;
  if (Texts targets = written_inputs(op, form); !targets.empty()) {
    targets.insert(targets.begin(), site_name(op));
    data["writes"] = {{"writing", Scope(op).local("writing")}, {"targets", join(targets)}};
  }
  const std::optional<Gradient> gradient = gradient_of(context, op);
  if (gradient && records(context, op, *gradient, form)) {
    const bool all = form == Form::functional && !op.intermediate.empty();
    Texts args = arg_names(op);
    args.push_back(site_name(op));
    const std::string recorder = rt("autograd") + "::" + (all ? intermediate_name(op) : function_name(op, form));
    data["recorded"] = {{"tensors", tensors}, {"recorder", recorder}, {"recorder_args", join(args)}};
  } else if (const Call* const call = recorded_composite(context, op); call != nullptr && form == Form::functional) {
    const auto [recorder, args] = external_target(op, *call);
    data["recorded"] = {{"tensors", tensors}, {"recorder", recorder}, {"recorder_args", join(args)}};
  } else if (form == Form::inplace) {
    data["guarded"] = {{"write", Scope(op).local("write")}, {"op", cpp_name(op)}, {"tensors", tensors}};
  }
  return data;
}

/// The calls around a functional form: results that are views are marked, and results of an op
/// without a gradient are linked to a step through which backward is an error.
std::pair<std::string, std::string> around_result(const LowerContext& context, const Op& op) {
  if (!context.runtime.autograd) return {};
  const std::string tail = ", " + join(tensor_names(op)) + ")";
  const bool has_gradient = gradient_of(context, op) || recorded_composite(context, op) != nullptr;
  if (!has_gradient && !op.extension.no_gradient.value_or(false))
    return {rt("autograd::unlinked") + "(" + rt("ops") + "::" + cpp_name(op) + ", ", tail};
  if (!op.view.empty()) return {rt("autograd::views") + "(" + rt("ops") + "::" + cpp_name(op) + ", ", tail};
  return {};
}

Json dispatch_data(const LowerContext& context, const Op& op, Form form) {
  Json data = {{"local", false}, {"layout", false}, {"functional", false}, {"inplace", false}, {"plain", false}};
  data.update(recording_data(context, op, form));
  const std::string args = join(arg_names(op));
  Json call = {{"op", cpp_name(op)}, {"function", function_name(op, form)}};
  if (!context.runtime.dist) {
    data["plain"] = plain_data(op, form);
  } else if (form == Form::inplace) {
    Scope scope(op);
    for (const char* taken : {"site", "writing", "write"})
      scope.local(taken);  // the parameter, and the locals of recording_data()
    const Results results = results_of(op, form, false, scope);
    call["args"] = args;
    call["before"] = receive(results);
    call["result"] = return_value(results.returned);
    data["inplace"] = std::move(call);
  } else {
    const bool layered = !op.signature.inputs.empty();
    call["args"] = layered || args.empty() ? args : ", " + args;
    if (layered) std::tie(call["before"], call["after"]) = around_result(context, op);
    data[layered ? "functional" : "local"] = std::move(call);
  }
  return data;
}

/// The call of the dist function with a layout.
Json layout_data(const Op& op) {
  Json data = {{"local", false},    {"functional", false}, {"inplace", false}, {"plain", false},
               {"recorded", false}, {"guarded", false},    {"writes", false}};
  data["layout"] = {{"function", cpp_name(op)}, {"args", Shape{.layout = true}.args(op, arg_names(op))}};
  return data;
}

/// The function without intermediates, which calls the one with them.
Json pick_data(const Op& op, Shape shape) {
  const std::vector<int> kept = returned_outputs(op, false);
  Json pick = {{"function", rt("api") + "::" + intermediate_name(op)},
               {"args", shape.args(op, arg_names(op))},
               {"one", false},
               {"several", false}};
  if (kept.size() == 1) {
    pick["one"] = {{"index", kept[0]}};
    return pick;
  }
  Scope scope(op);
  const std::string all = scope.local("all");
  Texts results;
  for (const int output : kept)
    results.push_back(fmt::format("std::move({}({}))", rt("get", fmt::format("{}", output)), all));
  pick["several"] = {{"local", all}, {"result", return_value(results)}};
  return pick;
}

std::string invoke_arg(const Op& target, size_t index, const CallArg& arg) {
  switch (arg.kind) {
    case CallArg::Kind::name: return arg.name.text;
    case CallArg::Kind::dtype_of: return rt("tensor_dtype_of", arg.name.text);
    case CallArg::Kind::literal: break;
  }
  const ArgRef parameter = target.signature.args[index];
  if (parameter.tensor) return arg.literal.spelling;
  return constant(target, target.signature.attrs[parameter.index], arg.literal).value_or(arg.literal.spelling);
}

Json invoke_data(const LowerContext& context, const Op& op, Shape shape) {
  if (const Call* call = external_call(context, op)) {
    auto [function, args] = external_target(op, *call);
    if (takes_mask(context, op)) args.push_back(mask_name(op));
    return {{"named", false}, {"unnamed", {{"function", function}, {"args", join(args)}}}};
  }
  const Op& target = *context.selection.find(op.invoke->function.text);
  Texts args;
  for (size_t i = 0; i < op.invoke->args.size(); ++i) args.push_back(invoke_arg(target, i, op.invoke->args[i]));
  // An op that returns its intermediate outputs asks for those of the other op. The call is
  // qualified, because an argument may have its name.
  const bool all = !target.intermediate.empty() && op.signature.outputs.size() == target.signature.outputs.size();
  if (shape.site) args.push_back(site_name(op));
  if (shape.layout) args = with_layout(target, std::move(args), layout_name(op));
  Json call = {{"function", rt("api") + "::" + (all ? intermediate_name(target) : cpp_name(target))},
               {"args", join(args)}};
  // Users know the op that they called, so errors name that one, whose name an overload has too. A runtime without such errors omits the
  // symbol.
  if (is_overload(op) || !context.runtime.symbols.contains("call::rethrow_as"))
    return {{"named", false}, {"unnamed", std::move(call)}};
  call["op"] = op.name.text;
  call["invoked"] = target.name.text;
  return {{"named", std::move(call)}, {"unnamed", false}};
}

/// The function of that shape. If it returns intermediates, one without them follows.
void add_functions(const LowerContext& context, const Op& op, Shape shape, std::vector<Function>& functions) {
  const Form form = shape.form;
  shape.site = !shape.layout && takes_site(context, op, form);
  const bool picks = form == Form::functional && !op.intermediate.empty();
  functions.push_back({picks                   ? intermediate_name(op)
                       : form == Form::inplace ? inplace_name(op)
                                               : api_name(op),
                       return_type(op, form, form == Form::functional), shape});
  if (picks) functions.push_back({cpp_name(op), return_type(op, form, false), shape, true});
}

std::vector<Function> functions_of(const LowerContext& context, const Op& op) {
  std::vector<Function> functions;
  if (!has_body(op)) add_functions(context, op, {.mask = takes_mask(context, op)}, functions);
  else
    for (const Form form : forms_of(context, op)) add_functions(context, op, {form}, functions);
  if (takes_layout(context, op)) add_functions(context, op, {Form::functional, true}, functions);
  return functions;
}

/// Parameters without the names of those that `call` does not pass on, so that compilers do not warn.
Texts without_unused_names(const Op& op, const Call& call, Texts params) {
  for (const ArgRef arg : op.signature.args) {
    const std::string& name = name_of(op.signature, arg).text;
    const auto passes = [&](const CallArg& passed) {
      return passed.kind != CallArg::Kind::literal && passed.name.text == name;
    };
    if (std::any_of(call.args.begin(), call.args.end(), passes)) continue;
    for (std::string& param : params) {
      if (param.ends_with(" " + name)) param.replace(param.size() - name.size(), name.size(), "/*" + name + "*/");
    }
  }
  return params;
}

/// A definition. The body is one of the three.
Json definition(const LowerContext& context, const Op& op, const Function& function) {
  const Shape shape = function.shape;
  Texts params = shape.params(op, false);
  if (!has_body(op) && !function.picks) {
    const Call* external = external_call(context, op);
    params = without_unused_names(op, external != nullptr ? *external : *op.invoke, std::move(params));
  }
  Json data = {{"name", function.name},
               {"returns", function.returns},
               {"params", parameter_list(op, params)},
               {"dispatch", false},
               {"pick", false},
               {"invoke", false}};
  if (function.picks) data["pick"] = pick_data(op, shape);
  else if (!has_body(op)) data["invoke"] = invoke_data(context, op, shape);
  else data["dispatch"] = shape.layout ? layout_data(op) : dispatch_data(context, op, shape.form);
  return data;
}

/// The op's doc as one line, or false.
Json doc_of(const Op& op) {
  if (!op.extension.doc) return false;
  std::string text = *op.extension.doc;
  for (char& c : text) c = c == '\n' || c == '\r' ? ' ' : c;
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

/// The declarations of an op: its doc once, then each function with its default arguments.
Json declarations(const LowerContext& context, const Op& op) {
  Json list = Json::array();
  for (const Function& function : functions_of(context, op)) {
    list.push_back({{"returns", function.returns},
                    {"name", function.name},
                    {"params", parameter_list(op, function.shape.params(op, true))}});
  }
  return {{"doc", doc_of(op)}, {"declarations", std::move(list)}};
}

/// The headers of ops that this part invokes and that are in other parts.
Json invoked_headers(const LowerContext& context, const Part& part) {
  std::set<std::string> names;
  for (const Op* op : part.ops) {
    if (has_body(*op) || external_call(context, *op) != nullptr) continue;
    const std::vector<Part>& parts =
        context.parts[static_cast<size_t>(context.selection.family_of(op->invoke->function.text))];
    if (parts.empty()) {  // imported: the runtime has headers for all its ops
      const std::vector<std::string>& imported = context.runtime.headers.at("imported");
      names.insert(imported.begin(), imported.end());
    }
    const Part* const other =
        parts.empty() ? nullptr
                      : &parts[static_cast<size_t>(part_of(op->invoke->function.text, static_cast<int>(parts.size())))];
    if (other != nullptr && other->name != part.name) names.insert(other->name + ".h");
  }
  Json headers = Json::array();
  for (const std::string& name : names) headers.push_back({{"header", name}});
  return headers;
}

}  // namespace

Json api_header_data(const LowerContext& context, const Part& part) {
  return {{"source", part.source},
          {"ops", items_of(part.ops, [&](const Op& op, Json& ops) { ops.push_back(declarations(context, op)); })}};
}

Json api_source_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["headers"] = invoked_headers(context, part);
  data["dist"] = context.runtime.dist;
  data["autograd"] = context.runtime.autograd;
  data["functions"] = items_of(part.ops, [&](const Op& op, Json& functions) {
    for (const Function& function : functions_of(context, op)) functions.push_back(definition(context, op, function));
  });
  return data;
}

Json umbrella_data(const LowerContext& context) {
  Json headers = Json::array(), functions = Json::array();
  for (const std::vector<Part>& family : context.parts) {
    for (const Part& part : family) {
      headers.push_back({{"header", part.name}});
      functions.push_back({{"function", register_name(context.umbrella, part.name)}});
    }
  }
  Json data = {{"headers", std::move(headers)}, {"program", false}};
  if (context.runtime.program)
    data["program"] = {{"register", register_name(context.umbrella)}, {"functions", std::move(functions)}};
  return data;
}

}  // namespace shardgen

// Template data of the autograd layer: what each recorded call saves, and how its gradient function is
// called.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/gradients.h"
#include "lower/identifiers.h"
#include "model/print.h"

namespace shardgen {
namespace {

std::string numbers(const std::vector<int>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

/// The names of the locals of one function.
struct Locals {
  std::string record, backward, context;

  explicit Locals(const Op& op) {
    Scope scope(op);
    record = scope.local("record");
    backward = scope.local("backward");
    context = scope.local("context");
  }
};

/// The condition under which an argument is saved, in terms of the forward call.
std::string condition_of(const Op& op, const Gradient& gradient, const GradientArg& arg, const Locals& locals) {
  return condition_text(*arg.save_if, [&](const Condition::Term& term) {
    const Signature& backward = gradient.op->signature;
    if (term.kind == Condition::Term::Kind::wanted) {
      return fmt::format("{}.needs_grad({})", locals.record,
                         gradient.forward_inputs[static_cast<size_t>(find_output(backward, term.name.text))]);
    }
    const auto is_term = [&](const ArgRef& each) { return name_of(backward, each).text == term.name.text; };
    const auto place = std::find_if(backward.args.begin(), backward.args.end(), is_term);
    return op.signature.attrs[gradient.args[static_cast<size_t>(place - backward.args.begin())].index].name.text;
  });
}

/// How the record saves an input, or keeps an output.
std::string saving(const Op& op, const Gradient& gradient, const GradientArg& arg, const Locals& locals) {
  const bool input = arg.source == GradientArg::Source::input;
  const std::string what = input ? op.signature.inputs[arg.index].name.text : fmt::format("{}", arg.index);
  const std::string plain = input ? "save" : "keep";
  if (arg.shape_only) return fmt::format("{}_shape({})", plain, what);
  if (arg.save_if == nullptr) return fmt::format("{}({})", plain, what);
  return fmt::format("{}_{}({}, {})", plain, arg.optional ? "if" : "or_shape", condition_of(op, gradient, arg, locals),
                     what);
}

/// The captures of the gradient's function object: saved inputs and attributes, each once.
Texts captures(const Op& op, const Gradient& gradient, const Locals& locals) {
  Texts texts;
  std::set<std::string> seen;
  for (const GradientArg& arg : gradient.args) {
    if (arg.source != GradientArg::Source::input && arg.source != GradientArg::Source::attr) continue;
    const bool input = arg.source == GradientArg::Source::input;
    const std::string& name =
        input ? op.signature.inputs[arg.index].name.text : op.signature.attrs[arg.index].name.text;
    if (!seen.insert(name).second) continue;
    texts.push_back(input ? fmt::format("{} = {}.{}", name, locals.record, saving(op, gradient, arg, locals)) : name);
  }
  return texts;
}

/// The mask of the outputs of the backward op that are wanted.
std::string wanted_gradients(const Gradient& gradient, const Locals& locals) {
  return fmt::format("{}.needs_grads<{}>()", locals.context, numbers(gradient.forward_inputs));
}

std::string passed(const Op& op, const Gradient& gradient, size_t i, const Locals& locals) {
  const GradientArg& arg = gradient.args[i];
  switch (arg.source) {
    case GradientArg::Source::input: {
      const Input& input = op.signature.inputs[arg.index];
      if (input.list)
        return fmt::format("{}({}, {}, {})", rt("autograd::inputs"), input.name.text, locals.context, arg.index);
      return fmt::format("{}.input({}, {})", input.name.text, locals.context, arg.index);
    }
    case GradientArg::Source::output: return fmt::format("{}.output({})", locals.context, arg.index);
    case GradientArg::Source::attr: return op.signature.attrs[arg.index].name.text;
    case GradientArg::Source::mask: return wanted_gradients(gradient, locals);
    case GradientArg::Source::gradient: break;
  }
  if (op.signature.outputs[arg.index].list) return fmt::format("{}.grads({})", locals.context, arg.index);
  const Op& backward = *gradient.op;
  const bool optional = contains(backward.optional, name_of(backward.signature, backward.signature.args[i]).text);
  return fmt::format("{}.{}({})", locals.context, optional ? "grad_or_none" : "grad", arg.index);
}

/// The name of the recorded function: that of the public function that returns what it does.
std::string recorded_name(const Op& op, Form form) {
  return form == Form::functional && !op.intermediate.empty() ? intermediate_name(op) : function_name(op, form);
}

Texts recorded_parameters(const Op& op, Form form) {
  Texts params = parameters(op, Role::api, form, false);
  params.push_back(rt("CallSite") + " " + site_name(op));
  return params;
}

Json function_data(const LowerContext& context, const Op& op, const Gradient& gradient, Form form) {
  const Locals locals(op);
  const bool inplace = form == Form::inplace;
  const std::string function = function_name(op, form);
  const std::string site = site_name(op);
  Texts recorded = {site, rt("ops") + "::" + cpp_name(op)};
  if (inplace) recorded.insert(recorded.begin() + 1, rt("call::inplace"));
  for (const std::string& name : tensor_names(op)) recorded.push_back(name);
  Json keeps = Json::array();
  Texts args;
  for (size_t i = 0; i < gradient.args.size(); ++i) {
    args.push_back(passed(op, gradient, i, locals));
    if (gradient.args[i].source == GradientArg::Source::output)
      keeps.push_back({{"record", locals.record}, {"keep", saving(op, gradient, gradient.args[i], locals)}});
  }
  if (takes_mask(context, *gradient.op)) args.push_back(wanted_gradients(gradient, locals));
  Json written = false;
  if (inplace) {
    Texts targets;
    for (size_t i = 0; i < op.signature.outputs.size(); ++i) {
      const AliasPair* const pair = inplace_pair_of_output(op, static_cast<int>(i));
      targets.push_back(pair == nullptr ? "nullptr" : "&" + pair->input.text);
    }
    written = {{"targets", join(targets)}, {"result", written_result(op)}};
  }
  return {{"returns", return_type(op, form, form == Form::functional)},
          {"name", recorded_name(op, form)},
          {"params", parameter_list(op, recorded_parameters(op, form))},
          {"record", locals.record},
          {"backward", locals.backward},
          {"context", locals.context},
          {"recorded", join(recorded)},
          {"keeps", std::move(keeps)},
          {"captures", join(captures(op, gradient, locals))},
          {"forward_inputs", numbers(gradient.forward_inputs)},
          {"gradient", rt("api") + "::" + cpp_name(*gradient.op)},
          {"gradient_args", join(args)},
          {"differentiable", numbers(gradient.differentiable)},
          {"op", cpp_name(op)},
          {"function", function},
          {"args", join(arg_names(op))},
          {"functional", !inplace},
          {"inplace", std::move(written)}};
}

/// A list of what `make` returns for each form of an op that is recorded with a gradient.
template <class Make>
Json for_recorded(const LowerContext& context, const Part& part, const Make& make) {
  return items_of(own_ops(part), [&](const Op& op, Json& list) {
    const std::optional<Gradient> gradient = gradient_of(context, op);
    if (!gradient) return;
    for (const Form form : forms_of(context, op)) {
      if (records(context, op, *gradient, form)) list.push_back(make(op, *gradient, form));
    }
  });
}

/// The headers of gradient functions that are in other parts.
Json gradient_headers(const LowerContext& context, const Part& part) {
  std::set<std::string> names;
  for (const Op* op : part.ops) {
    const std::optional<Gradient> gradient = gradient_of(context, *op);
    if (!gradient) continue;
    const std::vector<Part>& parts =
        context.parts[static_cast<size_t>(context.selection.family_of(gradient->op->name.text))];
    if (parts.empty()) continue;
    const Part& other = parts[static_cast<size_t>(part_of(gradient->op->name.text, static_cast<int>(parts.size())))];
    if (other.name != part.name) names.insert(other.name + ".h");
  }
  Json headers = Json::array();
  for (const std::string& name : names) headers.push_back({{"header", name}});
  return headers;
}

}  // namespace

Json autograd_header_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["functions"] = for_recorded(context, part, [&](const Op& op, const Gradient&, Form form) {
    Json written = false;
    if (context.selection.has_overload(op))
      written = {{"returns", return_type(op, form, form == Form::functional)},
                 {"params", parameter_list(op, recorded_parameters(op, form))}};
    return Json{{"name", recorded_name(op, form)}, {"same", written == false}, {"written", std::move(written)}};
  });
  return data;
}

Json autograd_source_data(const LowerContext& context, const Part& part) {
  Json data = file_head(part);
  data["headers"] = gradient_headers(context, part);
  data["functions"] = for_recorded(context, part, [&](const Op& op, const Gradient& gradient, Form form) {
    return function_data(context, op, gradient, form);
  });
  return data;
}

}  // namespace shardgen

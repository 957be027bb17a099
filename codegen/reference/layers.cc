// Describes the steps of generated functions. The dense steps are those of lower/plan.cc; the
// distributed ones follow call::DistCall.
#include "reference/layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <sstream>

#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/identifiers.h"
#include "lower/rules.h"
#include "shard/core/axis_expr.h"

namespace shardgen {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

LayerFact public_layer(const LowerContext& context, const Op& op, Form form) {
  const std::string name = function_name(op, form);
  LayerFact layer{name, {}};
  if (op.signature.inputs.empty()) layer.steps.push_back(fmt::format("dist::{} if a layout is given", name));
  else layer.steps.push_back(fmt::format("dist::{} if an argument is distributed", name));
  layer.steps.push_back("check that the handles are defined and readable");
  if (context.runtime.dist) layer.steps.push_back(fmt::format("infer::{}", cpp_name(op)));
  layer.steps.push_back(fmt::format("dense::{}", name));
  return layer;
}

std::string collect_step(const Op& op) {
  Texts tensors, attrs;
  for (const Input& input : op.signature.inputs) tensors.push_back(input.name.text);
  for (const Attr& attr : op.signature.attrs) attrs.push_back(attr.name.text);
  if (tensors.empty()) return "collect the layout; attributes " + join(attrs);
  std::string text = "collect " + join(tensors);
  if (!attrs.empty()) text += "; attributes " + join(attrs);
  return text;
}

std::string placement_step(const LowerContext& context, const Op& op) {
  const std::optional<std::string> rule = rule_of(context.selection, op);
  if (!rule) return "placement: no rule, so the call throws no_rule unless FallbackPolicy::replicate holds";
  return shard::is_axis_expr(*rule) ? fmt::format("placement by \"{}\"", *rule)
                                    : fmt::format("placement by the C++ rule {}", *rule);
}

std::string reshard_step(const Op& op, Form form) {
  Texts moved, pinned;
  for (size_t i = 0; i < op.signature.inputs.size(); ++i)
    (is_written_input(op, static_cast<int>(i), form) ? pinned : moved).push_back(op.signature.inputs[i].name.text);
  std::string text = moved.empty() ? "reshard" : "reshard " + join(moved) + " where the rule requires another layout";
  if (!pinned.empty()) text += fmt::format("{} {} keeps its layout if it can", moved.empty() ? ":" : ";", join(pinned));
  return text;
}

std::string local_shape_step(const Op& op) {
  if (!op.infer_meta->local_shape) return "local shapes";
  const Name* output = op.infer_meta->global_shape ? &*op.infer_meta->global_shape : &op.signature.outputs[0].name;
  return fmt::format("local shapes; {} becomes that of {}", op.infer_meta->local_shape->text, output->text);
}

/// How each output is made from the computed local shard.
std::vector<std::string> finish_steps(const Op& op, Form form) {
  std::vector<std::string> steps;
  for (size_t i = 0; i < op.signature.outputs.size(); ++i) {
    const std::string& output = op.signature.outputs[i].name.text;
    const int index = static_cast<int>(i);
    if (const AliasPair* pair = form == Form::inplace ? inplace_pair_of_output(op, index) : nullptr) {
      steps.push_back(
          fmt::format("write back {} into {}, resharded to its layout; bump its version", output, pair->input.text));
    } else if (view_kind(op, index) != ViewKind::none) {
      steps.push_back(fmt::format("wrap {}, a view; of a copy where its argument was resharded", output));
    } else if (has_dynamic_shape(op, op.signature.outputs[i])) {
      steps.push_back(
          fmt::format("exchange the row counts of {} over the world; send rows to balanced shards; wrap", output));
    } else {
      steps.push_back(fmt::format("wrap {} with its global meta and layout", output));
    }
  }
  return steps;
}

/// An op without tensor arguments, called with a layout.
LayerFact layout_layer(const Op& op) {
  LayerFact layer{"dist::" + cpp_name(op), {collect_step(op)}};
  layer.steps.push_back(fmt::format("infer global meta: {}", op.infer_meta->func->text));
  layer.steps.push_back("placement: the layout that the caller passes");
  if (is_random(op)) layer.steps.push_back("draw a random key on all ranks");
  layer.steps.push_back(fmt::format("dense::{} makes the local shards of this rank", cpp_name(op)));
  const std::vector<std::string> last = finish_steps(op, Form::functional);
  layer.steps.insert(layer.steps.end(), last.begin(), last.end());
  return layer;
}

LayerFact dist_layer(const LowerContext& context, const Op& op, Form form) {
  LayerFact layer{"dist::" + function_name(op, form), {collect_step(op)}};
  layer.steps.push_back(fmt::format("infer global meta: {}", op.infer_meta->func->text));
  layer.steps.push_back(placement_step(context, op));
  layer.steps.push_back(reshard_step(op, form));
  layer.steps.push_back(local_shape_step(op));
  if (is_random(op)) layer.steps.push_back("draw a random key on all ranks");
  layer.steps.push_back(fmt::format("dense::{} on the local shards of this rank", function_name(op, form)));
  const std::vector<std::string> last = finish_steps(op, form);
  layer.steps.insert(layer.steps.end(), last.begin(), last.end());
  return layer;
}

}  // namespace

std::vector<std::string> declarations_of(const LowerContext& context, const Op& op) {
  std::vector<std::string> declarations;
  const auto declare = [&](const std::string& name, Form form, bool all, const Texts& params) {
    declarations.push_back(
        spell_symbols(context.runtime, fmt::format("{} {}({})", return_type(op, form, all), name, join(params))));
  };
  const auto declare_form = [&](Form form, const Texts& params) {
    declare(form == Form::inplace ? inplace_name(op) : api_name(op), form, !has_body(op), params);
    if (has_body(op) && form == Form::functional && !op.intermediate.empty())
      declare(intermediate_name(op), form, true, params);
  };
  if (!has_body(op)) declare_form(Form::functional, parameters(op, Role::api, Form::functional, true));
  else
    for (const Form form : forms_of(context, op)) declare_form(form, parameters(op, Role::api, form, true));
  if (takes_layout(context, op)) declare_form(Form::functional, layout_parameters(op, true));
  return declarations;
}

std::vector<LayerFact> layers_of(const LowerContext& context, const Op& op) {
  if (const Call* call = external_call(context, op))
    return {{cpp_name(op), {"call the C++ function " + call->function.text}}};
  if (!has_body(op)) return {{api_name(op), {"call " + op.invoke->function.text}}};
  std::vector<LayerFact> layers;
  const bool dist = context.runtime.dist;
  for (const Form form : forms_of(context, op)) {
    layers.push_back(public_layer(context, op, form));
    // With a dist layer, the first step of the plan is a function of its own.
    std::vector<std::string> steps = lines_of(describe(op, plan_dense(op, form)));
    if (dist && form == forms_of(context, op).front()) layers.push_back({"infer::" + cpp_name(op), {steps.front()}});
    if (dist) steps.erase(steps.begin());
    layers.push_back({"dense::" + function_name(op, form), std::move(steps)});
    if (takes_layout(context, op)) layers.push_back(layout_layer(op));
    else if (!op.signature.inputs.empty()) layers.push_back(dist_layer(context, op, form));
  }
  return layers;
}

}  // namespace shardgen

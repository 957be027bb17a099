// Links forward ops to their backward ops.
#include "lower/gradients.h"

#include <algorithm>

#include "lower/data_common.h"
#include "lower/functions.h"
#include "lower/identifiers.h"
#include "lower/masks.h"

namespace shardgen {
namespace {

constexpr std::string_view kSuffix = "_grad";

/// The index of the tensor whose gradient is called `name` ("x_grad"), or -1.
template <class T>
int owner_of(const std::vector<T>& tensors, const std::string& name) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.text + std::string(kSuffix) == name) return static_cast<int>(i);
  }
  return -1;
}

const Condition* condition_of(const Op& backward, const std::string& arg) {
  if (!backward.extension.save_if) return nullptr;
  for (const SaveIf& one : *backward.extension.save_if) {
    if (one.arg.text == arg) return &one.condition;
  }
  return nullptr;
}

std::optional<GradientArg> source_of(const Signature& forward, const Op& backward, ArgRef arg) {
  using Source = GradientArg::Source;
  const std::string& name = name_of(backward.signature, arg).text;
  if (!arg.tensor) {
    if (arg.index == mask_of(backward)) return GradientArg{Source::mask};
    const int attr = find_attr(forward, name);
    return attr < 0 ? std::nullopt : std::optional(GradientArg{Source::attr, attr});
  }
  const bool list = backward.signature.inputs[arg.index].list;
  const bool shape_only = contains(backward.no_need_buffer, name), optional = contains(backward.optional, name);
  const Condition* const save_if = condition_of(backward, name);
  // A gradient of higher order may have the name of a tensor of the forward op; the name then
  // refers to that tensor.
  if (const int input = find_input(forward, name); input >= 0) {
    if (forward.inputs[input].list != list) return std::nullopt;
    return GradientArg{Source::input, input, shape_only, optional, save_if};
  }
  if (const int output = find_output(forward, name); output >= 0) {
    if (forward.outputs[output].list || list) return std::nullopt;
    return GradientArg{Source::output, output, shape_only, optional, save_if};
  }
  if (const int output = owner_of(forward.outputs, name); output >= 0) {
    if (forward.outputs[output].list != list) return std::nullopt;
    return GradientArg{Source::gradient, output};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Gradient> gradient_of(const LowerContext& context, const Op& op) {
  if (!context.runtime.autograd || !op.backward || !has_body(op)) return std::nullopt;
  const Op* const backward = context.selection.find(op.backward->text);
  if (backward == nullptr || !backward->forward || !backward->intermediate.empty()) return std::nullopt;
  // Names are those of the backward op's own `forward` line; tensors and attributes are in the
  // order of the forward op.
  const Signature& forward = backward->forward->signature;
  const Signature& own = op.signature;
  if (forward.inputs.size() != own.inputs.size() || forward.outputs.size() != own.outputs.size() ||
      forward.attrs.size() != own.attrs.size())
    return std::nullopt;
  Gradient gradient{backward, {}, {}, {}};
  for (const ArgRef arg : backward->signature.args) {
    const std::optional<GradientArg> source = source_of(forward, *backward, arg);
    if (!source) return std::nullopt;
    if (source->source == GradientArg::Source::gradient) gradient.differentiable.push_back(source->index);
    gradient.args.push_back(*source);
  }
  for (const Output& output : backward->signature.outputs) {
    const int input = owner_of(forward.inputs, output.name.text);
    if (input < 0 || output.list != forward.inputs[input].list) return std::nullopt;
    gradient.forward_inputs.push_back(input);
  }
  if (gradient.differentiable.empty()) return std::nullopt;
  return gradient;
}

bool takes_site(const LowerContext& context, const Op& op, Form form) {
  if (!context.runtime.autograd || op.signature.inputs.empty()) return false;
  const Op* const end = context.selection.end_of(op);
  if (end == nullptr) return false;
  if (end != &op) return takes_site(context, *end, Form::functional);
  if (form == Form::inplace || !written_inputs(op, form).empty()) return true;
  const std::optional<Gradient> gradient = gradient_of(context, op);
  return gradient && records(context, op, *gradient, form);
}

std::string site_name(const Op& op) { return Scope(op).local("site"); }

bool records(const LowerContext& context, const Op& op, const Gradient& gradient, Form form) {
  if (form == Form::functional) return true;
  // An output that an in-place form does not return cannot be saved.
  return context.runtime.dist &&
         std::all_of(gradient.args.begin(), gradient.args.end(),
                     [&](const GradientArg& arg) {
                       return arg.source != GradientArg::Source::output ||
                              inplace_pair_of_output(op, arg.index) != nullptr;
                     }) &&
         returns_arguments(op) &&
         std::none_of(op.signature.inputs.begin(), op.signature.inputs.end(), [&](const Input& input) {
           return input.list && is_written_input(op, find_input(op.signature, input.name.text), form);
         });
}

}  // namespace shardgen

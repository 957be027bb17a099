// Decides the steps of a dense function.
#include "lower/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lower/masks.h"
#include "lower/support.h"

namespace shardgen {
namespace {

std::vector<DTypeSource> dtype_sources(const Op& op) {
  std::vector<DTypeSource> sources;
  for (const Candidate& candidate : op.kernel->data_type.candidates) {
    if (candidate.constant) {
      sources.push_back({DTypeSource::Kind::constant, 0, *candidate.constant, candidate.to_complex});
    } else if (const std::optional<ArgRef> arg = find_arg(op.signature, candidate.name.text)) {
      sources.push_back(
          {arg->tensor ? DTypeSource::Kind::input : DTypeSource::Kind::attr, arg->index, {}, candidate.to_complex});
    }
  }
  if (!sources.empty()) return sources;
  // The first tensor that is always present; before it, those that may be absent.
  for (size_t i = 0; i < op.signature.inputs.size(); ++i) {
    sources.push_back({DTypeSource::Kind::input, static_cast<int>(i), {}, false});
    if (!contains(op.optional, op.signature.inputs[i].name.text)) return {sources.back()};
  }
  return sources;
}

DeviceStep device_step(const Op& op) {
  DeviceStep step;
  for (const Candidate& candidate : op.kernel->backend.candidates) {
    const int attr = find_attr(op.signature, candidate.name.text);
    if (attr < 0) break;
    step.attrs.push_back(attr);
  }
  step.tensors =
      !op.signature.inputs.empty() && step.attrs.size() < std::max<size_t>(op.kernel->backend.candidates.size(), 1);
  return step;
}

/// The argument whose buffer an output shares as a view, or -1.
int viewed_input(const Op& op, int output) {
  for (const AliasPair& pair : op.view) {
    if (pair.output.text == op.signature.outputs[output].name.text) return find_input(op.signature, pair.input.text);
  }
  return -1;
}

/// The optional argument of a backward op whose absence makes its optional gradient absent, or -1.
int argument_of_gradient(const Op& op, int output) {
  const std::string& name = op.signature.outputs[output].name.text;
  if (!op.is_backward || !contains(op.optional, name)) return -1;
  for (int i = 0; i < static_cast<int>(op.signature.inputs.size()); ++i) {
    const std::string& input = op.signature.inputs[i].name.text;
    if (input + "_grad" == name && contains(op.optional, input)) return i;
  }
  return -1;
}

OutputStep output_step(const Op& op, int index, Form form) {
  using Source = OutputStep::Source;
  const AliasPair* inplace = inplace_pair_of_output(op, index);
  switch (view_kind(op, index)) {
    case ViewKind::reinterpreting: return {Source::reinterpret, index, viewed_input(op, index)};
    case ViewKind::written:
      if (form == Form::inplace && inplace != nullptr) break;
      return {Source::written_view, index, viewed_input(op, index)};
    case ViewKind::none: break;
  }
  if (inplace == nullptr) {
    const int argument = argument_of_gradient(op, index);
    return {argument < 0 ? Source::allocate : Source::allocate_if, index, argument};
  }
  const int input = find_input(op.signature, inplace->input.text);
  if (form == Form::inplace) return {Source::target, index, input};
  const bool optional = contains(op.optional, inplace->input.text);
  return {optional ? Source::allocate_if : Source::allocate, index, optional ? input : -1};
}

/// True for an output that the kernel writes into the buffer of an argument.
bool writes_argument(const OutputStep& step) {
  return step.source == OutputStep::Source::target || step.source == OutputStep::Source::written_view;
}

bool is_written(const std::vector<OutputStep>& outputs, int input) {
  return std::any_of(outputs.begin(), outputs.end(),
                     [&](const OutputStep& step) { return writes_argument(step) && step.input == input; });
}

/// The steps between the lookup of the kernel and its call.
void add_preparation(const Op& op, const std::vector<ArgRef>& tensors, const std::vector<OutputStep>& outputs,
                     DensePlan& plan) {
  for (const ArgRef arg : tensors) {
    if (is_written(outputs, arg.index)) continue;
    if (contains(op.data_transform.support_trans_dtype, op.signature.inputs[arg.index].name.text))
      plan.steps.push_back(CastStep{arg.index});
  }
  const bool guarded = std::any_of(outputs.begin(), outputs.end(), writes_argument);
  if (guarded) plan.steps.push_back(GuardStep{});
  plan.steps.insert(plan.steps.end(), outputs.begin(), outputs.end());
  if (guarded) {
    for (const ArgRef arg : tensors) {
      if (!is_written(outputs, arg.index)) plan.steps.push_back(ReaderStep{arg.index});
    }
  }
  if (is_random(op)) plan.steps.push_back(DrawStep{});
  plan.steps.push_back(RunStep{guarded});
}

struct Describer {
  const Op& op;

  std::string input(int index) const { return op.signature.inputs[index].name.text; }
  std::string output(int index) const { return op.signature.outputs[index].name.text; }
  std::string args(const std::vector<Passed>& passed) const {
    std::string text;
    for (const Passed& each : passed) {
      if (!text.empty()) text += ", ";
      text += each.arg ? name_of(op.signature, *each.arg).text : each.constant.spelling;
      if (each.dtype_of) text += ".dtype()";
    }
    return text;
  }
  std::string operator()(const InferMetaStep& step) const {
    return fmt::format("infer_meta {}({})", step.func, args(step.args));
  }
  std::string operator()(const DeviceStep& step) const {
    std::string text = "device";
    for (const int attr : step.attrs) text += " " + op.signature.attrs[attr].name.text;
    return text + (step.tensors ? " tensors" : "");
  }
  std::string operator()(const KernelStep& step) const {
    std::string text = fmt::format("kernel {}({}) by", step.table, args(step.args));
    for (const DTypeSource& source : step.dtypes) {
      if (source.to_complex) text += " complex";
      switch (source.kind) {
        case DTypeSource::Kind::input: text += " " + input(source.index); break;
        case DTypeSource::Kind::attr: text += " " + op.signature.attrs[source.index].name.text; break;
        case DTypeSource::Kind::constant: text += " " + std::string(yaml_name(source.constant)); break;
      }
    }
    return text;
  }
  std::string operator()(const CastStep& step) const { return "cast " + input(step.input); }
  std::string operator()(const GuardStep&) const { return "guard"; }
  std::string operator()(const OutputStep& step) const {
    const auto from = [&](std::string_view verb) {
      return fmt::format("{} {} <- {}", verb, output(step.output), input(step.input));
    };
    switch (step.source) {
      case OutputStep::Source::allocate: return "allocate " + output(step.output);
      case OutputStep::Source::allocate_if:
        if (step.if_wanted) return "allocate_if wanted " + (step.input < 0 ? output(step.output) : from(""));
        return from("allocate_if");
      case OutputStep::Source::target: return from("target");
      case OutputStep::Source::reinterpret: return from("reinterpret");
      case OutputStep::Source::written_view: return from("written_view");
    }
    return "";
  }
  std::string operator()(const ReaderStep& step) const { return "reader " + input(step.input); }
  std::string operator()(const DrawStep&) const { return "draw"; }
  std::string operator()(const RunStep& step) const { return step.guarded ? "run guarded" : "run"; }
  std::string operator()(const RebindStep& step) const {
    return fmt::format("rebind {} to {}", input(step.input), output(step.output));
  }
};

}  // namespace

DensePlan plan_dense(const Op& op, Form form) {
  DensePlan plan;
  plan.form = form;
  plan.steps.push_back(InferMetaStep{op.infer_meta->func->text, resolve_params(op, infer_meta_params(op))});
  std::vector<OutputStep> outputs;
  std::vector<RebindStep> rebinds;
  for (int i = 0; i < static_cast<int>(op.signature.outputs.size()); ++i) {
    OutputStep step = output_step(op, i, form);
    if (is_masked(op, i)) {
      step.source = OutputStep::Source::allocate_if;
      step.if_wanted = true;
    }
    const bool in_place = form == Form::inplace && inplace_pair_of_output(op, i) != nullptr;
    if (!in_place) plan.returns.push_back(i);
    if (in_place && step.source == OutputStep::Source::reinterpret) rebinds.push_back({step.input, i});
    outputs.push_back(step);
  }
  const bool only_views = std::all_of(outputs.begin(), outputs.end(),
                                      [](const OutputStep& s) { return s.source == OutputStep::Source::reinterpret; });
  if (only_views) {
    // For an output in place, the rebind is the only step.
    for (const int output : plan.returns) plan.steps.push_back(outputs[static_cast<size_t>(output)]);
  } else {
    plan.steps.push_back(device_step(op));
    const std::vector<Passed> params = resolve_params(op, kernel_params(op));
    std::vector<ArgRef> tensors;
    for (const Passed& each : params) {
      if (each.arg && each.arg->tensor && !each.dtype_of) tensors.push_back(*each.arg);
    }
    plan.steps.push_back(KernelStep{dense_kernel(op)->name.text, params, dtype_sources(op)});
    add_preparation(op, tensors, outputs, plan);
  }
  plan.steps.insert(plan.steps.end(), rebinds.begin(), rebinds.end());
  return plan;
}

std::optional<ComputeStep> compute_step(const Op& op, const DensePlan& plan) {
  ComputeStep compute;
  bool runs = false;
  for (const Step& step : plan.steps) {
    if (const auto* device = std::get_if<DeviceStep>(&step)) compute.device = *device;
    if (const auto* cast = std::get_if<CastStep>(&step)) compute.casts.push_back(*cast);
    if (const auto* output = std::get_if<OutputStep>(&step)) compute.outputs.push_back(*output);
    if (std::holds_alternative<RebindStep>(step)) return std::nullopt;
    if (const auto* kernel = std::get_if<KernelStep>(&step)) {
      compute.kernel = *kernel;
      runs = true;
    }
  }
  const auto all_from = [&](OutputStep::Source source) {
    return std::all_of(compute.outputs.begin(), compute.outputs.end(),
                       [&](const OutputStep& o) { return o.source == source; });
  };
  compute.in_place = all_from(OutputStep::Source::target);
  // A list may be allocated even if its optional argument is absent: its length is that of its
  // metas.
  const bool fresh = std::all_of(compute.outputs.begin(), compute.outputs.end(), [&](const OutputStep& o) {
    return o.source == OutputStep::Source::allocate ||
           (o.source == OutputStep::Source::allocate_if && op.signature.outputs[o.output].list);
  });
  if (!runs || compute.outputs.empty()) return std::nullopt;
  // The device of an op in place is that of its kernel's tensors.
  const bool in_place = compute.in_place && compute.device.attrs.empty() && gets_all_tensors(op, compute.kernel);
  return fresh || in_place ? std::optional(compute) : std::nullopt;
}

bool gets_all_tensors(const Op& op, const KernelStep& kernel) {
  for (int i = 0; i < static_cast<int>(op.signature.inputs.size()); ++i) {
    const bool given = std::any_of(kernel.args.begin(), kernel.args.end(), [&](const Passed& each) {
      return each.arg && each.arg->tensor && each.arg->index == i && !each.dtype_of;
    });
    if (!given) return false;
  }
  return true;
}

std::optional<OutputStep> lone_view(const DensePlan& plan) {
  if (plan.steps.size() != 2 || plan.returns.size() != 1) return std::nullopt;
  const auto* output = std::get_if<OutputStep>(&plan.steps[1]);
  return output != nullptr && output->source == OutputStep::Source::reinterpret ? std::optional(*output) : std::nullopt;
}

std::string describe(const Op& op, const DensePlan& plan) {
  std::string text;
  for (const Step& step : plan.steps) text += std::visit(Describer{op}, step) + "\n";
  for (const int output : plan.returns) text += "return " + op.signature.outputs[output].name.text + "\n";
  return text;
}

const AliasPair* inplace_pair_of_input(const Op& op, int index) {
  for (const AliasPair& pair : op.inplace) {
    if (pair.input.text == op.signature.inputs[index].name.text) return &pair;
  }
  return nullptr;
}

const AliasPair* inplace_pair_of_output(const Op& op, int index) {
  for (const AliasPair& pair : op.inplace) {
    if (pair.output.text == op.signature.outputs[index].name.text) return &pair;
  }
  return nullptr;
}

std::vector<Passed> resolve_params(const Op& op, const std::optional<std::vector<CallArg>>& param) {
  std::vector<Passed> args;
  if (!param) {
    for (const ArgRef arg : op.signature.args) args.push_back({arg, false, {}});
    return args;
  }
  for (const CallArg& arg : *param) {
    if (arg.kind == CallArg::Kind::literal) {
      args.push_back({std::nullopt, false, arg.literal});
    } else {
      args.push_back({find_arg(op.signature, arg.name.text), arg.kind == CallArg::Kind::dtype_of, {}});
    }
  }
  return args;
}

ViewKind view_kind(const Op& op, int output) {
  const std::string& name = op.signature.outputs[output].name.text;
  const bool view =
      std::any_of(op.view.begin(), op.view.end(), [&](const AliasPair& pair) { return pair.output.text == name; });
  if (!view) return ViewKind::none;
  if (op.extension.view_writes)
    return contains(*op.extension.view_writes, name) ? ViewKind::written : ViewKind::reinterpreting;
  return inplace_pair_of_output(op, output) != nullptr ? ViewKind::reinterpreting : ViewKind::written;
}

bool is_elementwise(const Op& op) {
  if (op.extension.elementwise) return *op.extension.elementwise;
  return op.infer_meta && op.infer_meta->expression && shard::is_elementwise(*op.infer_meta->expression);
}

bool has_trait(const Op& op, Trait trait) {
  const auto& traits = op.extension.traits;
  return traits && std::find(traits->begin(), traits->end(), trait) != traits->end();
}

bool has_dynamic_shape(const Op& op, const Output& output) {
  return op.extension.dynamic_shape && contains(*op.extension.dynamic_shape, output.name.text);
}

bool is_random(const Op& op) { return op.extension.random.value_or(false); }

}  // namespace shardgen

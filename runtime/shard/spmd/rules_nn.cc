// Rules of neural-network ops that an axis expression cannot say, of optimisers, and the guards
// that ops_yaml names.
#include <algorithm>
#include <cmath>

#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/notation.h"

namespace shard::spmd {
namespace {

/// Channels may be sharded, alike in all tensors; over sharded batch and space dims the kernel
/// combines its sums.
RuleResult batch_norm(const RuleArgs& args) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims, Letter::Role::collective)};
  const int channel = channel_dim(args);
  n.letters[static_cast<size_t>(channel)].role = Letter::Role::map;
  for (size_t t = 1; t < args.tensors.size(); ++t) {
    n.inputs.push_back(args.tensors[t].spec ? std::vector<int>{channel} : std::vector<int>());
  }
  n.outputs = {n.inputs[0]};
  for (size_t o = 1; o < args.outputs.size(); ++o) n.outputs.push_back({channel});
  return solve(args, n);
}

/// As batch_norm. Where the statistics are constants, the gradient of x needs no sums, and those of
/// scale and bias stay pending.
RuleResult batch_norm_grad(const RuleArgs& args) {
  Notation n;
  const bool constants = args.flag("use_global_stats") || (args.flag("is_test") && !args.flag("trainable_statistics"));
  const std::vector<int> x =
      fresh_letters(n, args.tensors[0].meta.dims, constants ? Letter::Role::reduce : Letter::Role::collective);
  const int channel = channel_dim(args);
  n.letters[static_cast<size_t>(channel)].role = Letter::Role::map;
  const std::vector<int> none, of_channel = {channel};
  const auto& scale = args.tensors[1].spec ? of_channel : none;
  const auto& bias = args.tensors[2].spec ? of_channel : none;
  n.inputs = {x, scale, bias, of_channel, of_channel, x};
  n.outputs = {x, scale, bias};
  return solve(args, n);
}

/// The classes are not sharded, unless the kernel combines sums over them; a hard label has size 1 there.
RuleResult cross_entropy(const RuleArgs& args, Letter::Role of_classes) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int axis = normalize_axis(args.op.name, "axis", args.integer("axis"), x.rank());
  n.inputs = {fresh_letters(n, x)};
  n.letters[static_cast<size_t>(axis)].role = of_classes;
  std::vector<int> without = n.inputs[0];
  without[static_cast<size_t>(axis)] = kNoLetter;
  std::vector<int> label = args.flag("soft_label") ? n.inputs[0] : without;
  if (args.tensors[1].meta.dims.rank() < x.rank()) label.erase(label.begin() + axis);
  n.inputs.push_back(label);
  std::vector<int> loss = without;
  if (args.outputs[1].dims.rank() < x.rank()) loss.erase(loss.begin() + axis);
  // A softmax that the op does not compute has no dims.
  n.outputs = {args.outputs[0].dims.rank() == 0 ? std::vector<int>() : n.inputs[0], loss};
  return solve(args, n);
}

/// Each class has an independent gradient, unless softmax is multiplied by the sum of a soft label: then
/// classes are as in cross_entropy. A hard label has size 1 there.
RuleResult cross_entropy_grad(const RuleArgs& args, Letter::Role of_classes) {
  Notation n;
  const Dims& x = args.tensors[1].meta.dims;
  const auto axis = static_cast<size_t>(normalize_axis(args.op.name, "axis", args.integer("axis"), x.rank()));
  const std::vector<int> softmax = fresh_letters(n, x);
  const bool soft = args.flag("soft_label");
  if (soft && args.flag("use_softmax")) n.letters[axis].role = of_classes;
  std::vector<int> without = softmax;
  without[axis] = kNoLetter;
  std::vector<int> label = soft ? softmax : without;
  if (args.tensors[0].meta.dims.rank() < x.rank()) label.erase(label.begin() + static_cast<long>(axis));
  n.inputs = {label, softmax, without};
  n.outputs = {softmax};
  return solve(args, n);
}

/// Leading dims are summed over, so where they are sharded the gradients are pending. The tensor
/// that they are added to is pending alike: it is added on one rank only, or stays pending if it is
/// a pending gradient already.
RuleResult linear_param_grad_add(const RuleArgs& args) {
  Notation n;
  std::vector<int> x = fresh_letters(n, args.tensors[0].meta.dims, Letter::Role::reduce);
  std::vector<int> dout = x;
  n.letters[static_cast<size_t>(x.back())].role = Letter::Role::map;
  const int column = dout.back() =
      n.add({Letter::Role::map, ReduceType::sum, args.tensors[1].meta.dims[args.tensors[1].meta.dims.rank() - 1]});
  const bool has_bias = args.flag("has_bias");
  n.inputs = {x, dout, {}, {}};
  n.outputs = {{x.back(), column}, {has_bias ? column : kNoLetter}};
  if (args.tensors[2].spec != nullptr) n.inputs[2] = n.outputs[0];
  if (args.tensors[3].spec != nullptr) n.inputs[3] = {column};
  RuleResult result = solve(args, n);
  if (!has_bias) result.outputs[1] = Layout(args.mesh, 1);
  if (args.tensors[2].spec != nullptr) result.inputs[2] = result.outputs[0];
  if (args.tensors[3].spec != nullptr && has_bias) result.inputs[3] = result.outputs[1];
  return result;
}

/// Without y the last dim of x holds gates and values, so it is not sharded.
RuleResult swiglu(const RuleArgs& args) {
  Notation n;
  n.inputs = {fresh_letters(n, args.tensors[0].meta.dims), {}};
  n.outputs = {n.inputs[0]};
  if (args.tensors[1].spec != nullptr) n.inputs[1] = n.inputs[0];
  else n.letters.back().role = Letter::Role::whole;
  return solve(args, n);
}

RuleResult swiglu_grad(const RuleArgs& args) {
  Notation n;
  const std::vector<int> x = fresh_letters(n, args.tensors[0].meta.dims);
  const bool has_y = args.tensors[1].spec != nullptr;
  if (!has_y) n.letters.back().role = Letter::Role::whole;
  const std::vector<int> y = has_y ? x : std::vector<int>();
  n.inputs = {x, y, x};
  n.outputs = {x, y};
  return solve(args, n);
}

/// silu(x) * y is linear in y alone.
bool swiglu_is_linear(const RuleArgs& args) {
  return args.tensors[1].spec != nullptr && !args.tensors[0].spec->layout().has_partial();
}

/// The gradient of a function of one tensor is linear in the gradient of the output, and in nothing
/// else.
bool only_out_grad_is_pending(const RuleArgs& args) {
  for (size_t slot = 0; slot < args.slots.size(); ++slot) {
    const DistSpec* spec = args.tensors[args.slots[slot].first].spec;
    if (args.op.inputs[slot].name != "out_grad" && spec->layout().has_partial()) return false;
  }
  return true;
}

/// Activations rise with x where their numbers are not negative. A factor of 0 would make NaN of an
/// infinity, as would a number that is not finite.
bool factors_are_positive(const RuleArgs& args) {
  for (size_t i = 0; i < args.attrs.size(); ++i) {
    const auto* number = std::get_if<double>(&args.attrs[i]);
    if (number == nullptr) continue;
    const bool may_be_0 = args.op.attrs[i] == "threshold" || args.op.attrs[i] == "offset";
    if (!std::isfinite(*number) || *number < 0 || (*number == 0 && !may_be_0)) return false;
  }
  return true;
}

/// Also requires a finite factor: contributions of 0 would become NaN where the sum becomes
/// infinite.
bool scale_has_no_bias(const RuleArgs& args) {
  const auto* scale = std::get_if<Scalar>(&args.attr("scale"));
  const auto* bias = std::get_if<Scalar>(&args.attr("bias"));
  return bias != nullptr && bias->to<double>() == 0 && scale != nullptr && std::isfinite(scale->to<double>());
}

/// Widening or equal float types: each contribution converts without a change of value.
bool cast_keeps_float(const RuleArgs& args) {
  const DType from = args.tensors[0].meta.dtype;
  const DType to = args.outputs[0].dtype;
  const bool widens = from == to || to == DType::float64 || (to == DType::float32 && from != DType::float64);
  return is_floating(from) && is_floating(to) && widens;
}

/// Sums that change the dtype do not commute: the pending sum wraps, or is an or, in the narrow type.
bool sum_keeps_dtype(const RuleArgs& args) { return args.tensors[0].meta.dtype == args.outputs[0].dtype; }

}  // namespace

void register_nn_rules() {
  register_rule("MatmulInferSpmd", "... m? k ^transpose_x, ... k n? ^transpose_y -> ... m? n?");
  register_rule("SoftmaxInferSpmd", "...{!axis} -> ...{!axis}");
  register_rule(
      "LayerNormInferSpmd",
      "...{!begin_norm_axis..}, 1, 1 -> ...{!begin_norm_axis..}, ...{-begin_norm_axis..}, ...{-begin_norm_axis..}");
  register_rule("BatchNormInferSpmd", batch_norm);
  register_rule("BatchNormGradInferSpmd", batch_norm_grad);
  using Role = Letter::Role;
  register_rule("CrossEntropyWithSoftmaxInferSpmd",
                [](const RuleArgs& args) { return cross_entropy(args, Role::whole); });
  register_rule("CrossEntropyWithSoftmaxGradInferSpmd",
                [](const RuleArgs& args) { return cross_entropy_grad(args, Role::whole); });
  register_rule("CombinedCrossEntropyInferSpmd",
                [](const RuleArgs& args) { return cross_entropy(args, Role::combined); });
  register_rule("CombinedCrossEntropyGradInferSpmd",
                [](const RuleArgs& args) { return cross_entropy_grad(args, Role::combined); });
  register_rule("RmsNormInferSpmd", "... !d, !d -> ... !d, ...");
  register_rule("FusedLinearParamGradAddInferSpmd", linear_param_grad_add);
  register_rule("SwiGLUInferSpmd", swiglu);
  register_rule("SwiGLUGradInferSpmd", swiglu_grad);
  register_guard("SwiGLUIsLinear", swiglu_is_linear);
  register_guard("OnlyOutGradIsPending", only_out_grad_is_pending);
  register_guard("FactorsArePositive", factors_are_positive);
  register_guard("ScaleHasNoBias", scale_has_no_bias);
  register_guard("CastKeepsFloat", cast_keeps_float);
  register_guard("SumKeepsDType", sum_keeps_dtype);
}

void register_builtin_rules() {
  register_reduction_rules();
  register_shape_rules();
  register_indexing_rules();
  register_writing_rules();
  register_reshape_rule();
  register_nn_rules();
  register_dynamic_rules();
  register_attention_rules();
  register_conv_rules();
  register_graph_rules();
  register_vision_rules();
}

}  // namespace shard::spmd

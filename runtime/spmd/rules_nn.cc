// Rules of neural-network ops that are more than an axis expression, of optimisers, and the guards named in ops_yaml.
#include "spmd/builtin_rules.h"
#include "spmd/notation.h"

namespace shard::spmd {
namespace {

std::vector<int> matrix_letters(int row, int column, bool transposed) {
  return transposed ? std::vector<int>{column, row} : std::vector<int>{row, column};
}

/// [..., m, k] x [..., k, n] -> [..., m, n]; one-dimensional arguments have k only.
RuleResult matmul(const RuleArgs& args) {
  const Dims& x = args.tensors[0].meta.dims;
  const Dims& y = args.tensors[1].meta.dims;
  Notation n;
  const bool trans_x = args.flag("transpose_x") && x.rank() > 1;
  const bool trans_y = args.flag("transpose_y") && y.rank() > 1;
  const int k = n.add({Letter::Role::reduce, ReduceType::sum, x[x.rank() - (trans_x ? 2 : 1)]});
  const int m = x.rank() > 1 ? n.add({Letter::Role::map, ReduceType::sum, x[x.rank() - (trans_x ? 1 : 2)]}) : kNoLetter;
  const int c = y.rank() > 1 ? n.add({Letter::Role::map, ReduceType::sum, y[y.rank() - (trans_y ? 2 : 1)]}) : kNoLetter;
  const int x_batch = std::max(x.rank() - 2, 0);
  const int y_batch = std::max(y.rank() - 2, 0);
  n.inputs.resize(2);
  n.outputs.resize(1);
  const int batch = std::max(x_batch, y_batch);
  for (int i = 0; i < batch; ++i) {
    const int64_t a = i - (batch - x_batch) >= 0 ? x[i - (batch - x_batch)] : 1;
    const int64_t b = i - (batch - y_batch) >= 0 ? y[i - (batch - y_batch)] : 1;
    const int letter = n.add({Letter::Role::map, ReduceType::sum, a == 1 ? b : a});
    if (i >= batch - x_batch) n.inputs[0].push_back(a == 1 && b != 1 ? kNoLetter : letter);
    if (i >= batch - y_batch) n.inputs[1].push_back(b == 1 && a != 1 ? kNoLetter : letter);
    n.outputs[0].push_back(letter);
  }
  const auto append = [](std::vector<int>& to, const std::vector<int>& letters) { to.insert(to.end(), letters.begin(), letters.end()); };
  append(n.inputs[0], x.rank() > 1 ? matrix_letters(m, k, trans_x) : std::vector<int>{k});
  append(n.inputs[1], y.rank() > 1 ? matrix_letters(k, c, trans_y) : std::vector<int>{k});
  if (x.rank() > 1) n.outputs[0].push_back(m);
  if (y.rank() > 1) n.outputs[0].push_back(c);
  return solve(args, n);
}

RuleResult softmax(const RuleArgs& args) {
  Notation n;
  const Dims& dims = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, dims)};
  if (dims.rank() > 0) n.letters[static_cast<size_t>(normalize_axis(args.op.name, "axis", args.integer("axis"), dims.rank()))].role = Letter::Role::whole;
  n.outputs = n.inputs;
  return solve(args, n);
}

/// x (leading dims, normalised dims); scale and bias are whole; the statistics have the leading dims.
RuleResult layer_norm(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int begin = static_cast<int>(args.integer("begin_norm_axis"));
  const int lead = begin < 0 ? begin + x.rank() : begin;
  n.inputs = {fresh_letters(n, x), {}, {}};
  for (int d = lead; d < x.rank(); ++d) n.letters[static_cast<size_t>(d)].role = Letter::Role::whole;
  for (size_t t = 1; t < 3; ++t) n.inputs[t].assign(static_cast<size_t>(args.tensors[t].meta.dims.rank()), kNoLetter);
  const std::vector<int> leading(n.inputs[0].begin(), n.inputs[0].begin() + lead);
  n.outputs = {n.inputs[0], leading, leading};
  return solve(args, n);
}

/// Channels may be sharded everywhere alike; over sharded batch and space dims the kernel combines its sums.
RuleResult batch_norm(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  n.inputs = {fresh_letters(n, x, Letter::Role::collective)};
  const auto* format = std::get_if<std::string>(&args.attr("data_format"));
  const bool last = format != nullptr && !format->empty() && format->back() == 'C';
  const int channel = last ? x.rank() - 1 : 1;
  n.letters[static_cast<size_t>(channel)].role = Letter::Role::map;
  for (size_t t = 1; t < args.tensors.size(); ++t) {
    n.inputs.push_back(args.tensors[t].spec ? std::vector<int>{channel} : std::vector<int>());
  }
  n.outputs = {n.inputs[0]};
  for (size_t o = 1; o < args.outputs.size(); ++o) n.outputs.push_back({channel});
  return solve(args, n);
}

/// The class axis stays whole; a hard label has size 1 there.
RuleResult cross_entropy(const RuleArgs& args) {
  Notation n;
  const Dims& x = args.tensors[0].meta.dims;
  const int axis = normalize_axis(args.op.name, "axis", args.integer("axis"), x.rank());
  n.inputs = {fresh_letters(n, x)};
  n.letters[static_cast<size_t>(axis)].role = Letter::Role::whole;
  std::vector<int> without = n.inputs[0];
  without[static_cast<size_t>(axis)] = kNoLetter;
  std::vector<int> label = args.flag("soft_label") ? n.inputs[0] : without;
  if (args.tensors[1].meta.dims.rank() < x.rank()) label.erase(label.begin() + axis);
  n.inputs.push_back(label);
  std::vector<int> loss = without;
  if (args.outputs[1].dims.rank() < x.rank()) loss.erase(loss.begin() + axis);
  n.outputs = {n.inputs[0], loss};
  return solve(args, n);
}

bool scale_has_no_bias(const RuleArgs& args) {
  const auto* bias = std::get_if<Scalar>(&args.attr("bias"));
  return is_floating(args.tensors[0].meta.dtype) && bias != nullptr && bias->to<double>() == 0;
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
  register_rule("MatmulInferSpmd", matmul);
  register_rule("SoftmaxInferSpmd", softmax);
  register_rule("LayerNormInferSpmd", layer_norm);
  register_rule("BatchNormInferSpmd", batch_norm);
  register_rule("CrossEntropyWithSoftmaxInferSpmd", cross_entropy);
  register_guard("ScaleHasNoBias", scale_has_no_bias);
  register_guard("CastKeepsFloat", cast_keeps_float);
  register_guard("SumKeepsDType", sum_keeps_dtype);
}

void register_builtin_rules() {
  register_reduction_rules();
  register_shape_rules();
  register_reshape_rule();
  register_nn_rules();
}

}  // namespace shard::spmd

// Gradients of layers that are composites of other ops: either without a kernel, or for recorded
// calls of an op with a kernel. Attention is in attention.cc.
#include "shard/autograd/grad_mode.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/nn_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::softmax_argument_grad;
using gradients::sum_to;
using gradients::widened;

namespace {

using Triple = std::tuple<Tensor, Tensor, Tensor>;

/// 1 / sqrt(squares + epsilon), with the epsilon for which the forward op returned `result`.
Tensor inverse_root(const Tensor& squares, const Tensor& result) {
  const auto epsilon = [&] {
    const NoGrad constant;
    return subtract(pow(result, -2), squares);
  };
  return rsqrt(add(squares, epsilon()));
}

/// The gradient of v for normal = centred * factor, where `factor` is 1 over the root of the mean
/// of the squares of centred over `axes`, and centred is v minus its mean unless `mean_is_0`.
Tensor normalised_grad(const Tensor& normal, const Tensor& factor, const Tensor& grad, const IntArray& axes,
                       bool mean_is_0 = false) {
  const Tensor across = multiply(normal, mean(multiply(grad, normal), axes, true));
  return multiply(factor, subtract(mean_is_0 ? grad : subtract(grad, mean(grad, axes, true)), across));
}

/// The gradient of scale or bias from the gradient of each element, in its shape and dtype; absent
/// where the argument is.
Tensor affine_grad(const Tensor& affine, const Tensor& grad, const Dims& dims) {
  return affine.defined() ? narrowed(reshape(sum_to(grad, dims), affine.dims()), affine.dtype()) : Tensor();
}

/// All dims of `x` except the channel dim.
IntArray axes_without(const Tensor& x, int channel) {
  IntArray axes;
  for (int d = 0; d < x.dims().rank(); ++d) {
    if (d != channel) axes.push_back(d);
  }
  return axes;
}

/// Of images normalised over groups of channels: x is seen as [n, groups, channels of a group, places], or with the
/// places before the groups.
Triple image_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& bias, const Tensor& y_grad, float epsilon,
                       int64_t groups, bool channels_last) {
  const Dims& dims = x.dims();
  const int rank = dims.rank();
  const int64_t each = groups == 0 ? 0 : dims[channels_last ? rank - 1 : 1] / groups;
  const int64_t places = channels_last ? dims.numel(1, rank - 1) : dims.numel(2, rank);
  const IntArray shape =
      channels_last ? IntArray{dims[0], places, groups, each} : IntArray{dims[0], groups, each, places};
  const IntArray axes = channels_last ? IntArray{1, 3} : IntArray{2, 3};
  const Dims of_channels = channels_last ? Dims{groups, each} : Dims{groups, each, 1};
  const Tensor wide = reshape(widened(x), shape), grad = reshape(widened(y_grad), shape);
  const Tensor centred = subtract(wide, mean(wide, axes, true));
  const Tensor factor = rsqrt(shard::scale(mean(square(centred), axes, true), 1, static_cast<double>(epsilon)));
  const Tensor normal = multiply(centred, factor);
  const Tensor weighted = scale.defined() ? multiply(grad, reshape(widened(scale), of_channels)) : grad;
  return {narrowed(reshape(normalised_grad(normal, factor, weighted, axes), dims), x.dtype()),
          scale.defined() ? affine_grad(scale, multiply(grad, normal), of_channels) : Tensor(),
          affine_grad(bias, grad, of_channels)};
}

/// A weight for each class, from `label`: its own weights, or 1 for the class that it names unless
/// that class is ignored.
Tensor weights_of(const Tensor& label, const Tensor& softmax, const Tensor& loss_grad, bool soft_label,
                  int ignore_index, int axis) {
  const NoGrad constant;
  const Tensor one = full_like(softmax, 1), gradient = full_like(loss_grad, -1);
  return shard::cross_entropy_with_softmax_grad(label, one, gradient, soft_label, /*use_softmax=*/false, true,
                                                ignore_index, axis);
}

}  // namespace

Tensor label_smooth_grad(const Tensor& out_grad, float epsilon) {
  return scale(out_grad, 1.0 - static_cast<double>(epsilon));
}

Tensor softmax_grad(const Tensor& out, const Tensor& out_grad, int axis) {
  return narrowed(softmax_argument_grad(widened(out), widened(out_grad), axis), out.dtype());
}

Tensor log_softmax_grad(const Tensor& out, const Tensor& out_grad, int axis) {
  const Tensor grad = widened(out_grad);
  return narrowed(subtract(grad, multiply(exp(widened(out)), sum(grad, {axis}, true))), out.dtype());
}

Triple layer_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& bias, const Tensor& out_grad, float epsilon,
                       int begin_norm_axis) {
  const Tensor wide = widened(x), grad = widened(out_grad);
  IntArray axes;
  Dims dims;
  for (int d = normalize_axis("layer_norm_grad", "begin_norm_axis", begin_norm_axis, x.dims().rank());
       d < x.dims().rank(); ++d) {
    axes.push_back(d);
    dims.push_back(x.dims()[d]);
  }
  const Tensor centred = subtract(wide, mean(wide, axes, true));
  const Tensor factor = rsqrt(shard::scale(mean(square(centred), axes, true), 1, static_cast<double>(epsilon)));
  const Tensor normal = multiply(centred, factor);
  const Tensor weighted = scale.defined() ? multiply(grad, reshape(widened(scale), dims)) : grad;
  return {narrowed(normalised_grad(normal, factor, weighted, axes), x.dtype()),
          scale.defined() ? affine_grad(scale, multiply(grad, normal), dims) : Tensor(), affine_grad(bias, grad, dims)};
}

std::tuple<Tensor, Tensor> rms_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& invvar,
                                         const Tensor& out_grad) {
  const Tensor wide = widened(x), grad = widened(out_grad);
  const int last = x.dims().rank() - 1;
  const Tensor factor = inverse_root(mean(square(wide), {last}, true), unsqueeze(invvar, {last}));
  const Tensor normal = multiply(wide, factor);
  return {
      narrowed(normalised_grad(normal, factor, multiply(grad, widened(scale)), {last}, /*mean_is_0=*/true), x.dtype()),
      affine_grad(scale, multiply(grad, normal), {x.dims()[last]})};
}

Triple batch_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& bias, const Tensor& saved_mean,
                       const Tensor& saved_variance, const Tensor& out_grad, const std::string& data_format,
                       bool is_test, bool use_global_stats, bool trainable_statistics) {
  const Tensor wide = widened(x), grad = widened(out_grad);
  const int rank = x.dims().rank(), channel = data_format[1] == 'C' ? 1 : rank - 1;
  const IntArray axes = axes_without(x, channel);
  IntArray after;  // the dims that a tensor of the channels needs after its own, to broadcast to x
  for (int d = 1; d < rank - channel; ++d) after.push_back(d);
  const auto spread = [&](const Tensor& channels) { return after.empty() ? channels : unsqueeze(channels, after); };
  const auto affine = [&](const Tensor& weight, const auto& elements) {
    return weight.defined() ? narrowed(sum(elements(), axes), weight.dtype()) : Tensor();
  };
  const Tensor weighted = scale.defined() ? multiply(grad, spread(scale)) : grad;
  const bool constant = use_global_stats || (is_test && !trainable_statistics);
  const Tensor centred = subtract(wide, constant ? spread(saved_mean) : mean(wide, axes, true));
  const Tensor factor =
      constant ? spread(saved_variance) : inverse_root(mean(square(centred), axes, true), spread(saved_variance));
  const Tensor normal = multiply(centred, factor);
  const Tensor x_grad = constant ? multiply(weighted, factor) : normalised_grad(normal, factor, weighted, axes);
  return {narrowed(x_grad, x.dtype()), affine(scale, [&] { return multiply(grad, normal); }),
          affine(bias, [&] { return grad; })};
}

Triple group_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& bias, const Tensor& y_grad, float epsilon,
                       int groups, const std::string& data_format) {
  return image_norm_grad(x, scale, bias, y_grad, epsilon, groups, data_format[1] != 'C');
}

Triple instance_norm_grad(const Tensor& x, const Tensor& scale, const Tensor& bias, const Tensor& y_grad,
                          float epsilon) {
  return image_norm_grad(x, scale, bias, y_grad, epsilon, x.dims()[1], false);
}

Tensor cross_entropy_with_softmax_grad(const Tensor& label, const Tensor& softmax, const Tensor& loss_grad,
                                       bool soft_label, bool use_softmax, int ignore_index, int axis) {
  const Tensor p = widened(softmax),
               weights = widened(weights_of(label, softmax, loss_grad, soft_label, ignore_index, axis));
  const auto quotient = [&] { return divide(weights, where(logical_not(weights), full_like(p, 1), p)); };  // 0 / 0 is 0
  const Tensor slope = subtract(use_softmax ? multiply(p, sum(weights, {axis}, true)) : full_like(p, 0),
                                use_softmax ? weights : quotient());
  return narrowed(multiply(slope, widened(loss_grad)), softmax.dtype());
}

Tensor cross_entropy_and_softmax_grad(const Tensor& label, const Tensor& softmax, const Tensor& softmax_grad,
                                      const Tensor& loss_grad, bool soft_label, bool use_softmax,
                                      bool numeric_stable_mode, int ignore_index, int axis) {
  const auto of_loss = [&] {
    return shard::cross_entropy_with_softmax_grad(label, softmax, loss_grad, soft_label, use_softmax,
                                                  numeric_stable_mode, ignore_index, axis);
  };
  if (!softmax_grad.defined()) return of_loss();
  const Tensor of_softmax = use_softmax ? shard::softmax_grad(softmax, softmax_grad, axis) : softmax_grad;
  return loss_grad.defined() ? add(of_loss(), of_softmax) : of_softmax;
}

}  // namespace shard::external

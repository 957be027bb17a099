// Gradients of ops of activation.yaml for recorded calls, as composites of other ops: the kernels of
// the same names are not differentiated.
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/activation_ops.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::times;
using gradients::widened;

namespace {

Tensor is_positive(const Tensor& x) { return greater_than(x, full_like(x, 0)); }
Tensor ones(const Tensor& x) { return full_like(x, 1); }
Tensor up_to_0(const Tensor& x) { return clip(x, -std::numeric_limits<double>::infinity(), 0); }
/// 1 - x^2.
Tensor rest_of_square(const Tensor& x) { return scale(square(x), -1, 1); }

}  // namespace

Tensor elu_grad(const Tensor& given, const Tensor& out_grad, float alpha) {
  const Tensor x = widened(given);
  return times(out_grad, where(is_positive(x), ones(x), scale(exp(up_to_0(x)), alpha)));
}

Tensor celu_grad(const Tensor& given, const Tensor& out_grad, float alpha) {
  const Tensor x = widened(given);
  return times(out_grad, where(is_positive(x), ones(x), exp(scale(up_to_0(x), 1 / static_cast<double>(alpha)))));
}

Tensor selu_grad(const Tensor& given, const Tensor& out_grad, float factor, float alpha) {
  const Tensor out = widened(given);
  const double wide = static_cast<double>(factor) * static_cast<double>(alpha);
  return times(out_grad, where(is_positive(out), full_like(out, factor), scale(out, 1, wide)));
}

Tensor hardswish_grad(const Tensor& given, const Tensor& out_grad) {
  const Tensor x = widened(given);
  const Tensor middle = scale(x, 1.0 / 3, 0.5), far = cast(is_positive(x), x.dtype());
  return times(out_grad, where(less_than(abs(x), full_like(x, 3)), middle, far));
}

Tensor softplus_grad(const Tensor& given, const Tensor& out_grad, float beta, float threshold) {
  const Tensor x = scale(widened(given), beta);
  return times(out_grad, where(greater_than(x, full_like(x, threshold)), ones(x), sigmoid(x)));
}

Tensor softsign_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, square(reciprocal(scale(abs(widened(x)), 1, 1))));
}

Tensor logsigmoid_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, sigmoid(scale(widened(x), -1)));
}

Tensor mish_grad(const Tensor& given, const Tensor& out_grad, float lambda) {
  const Tensor x = widened(given), t = tanh(softplus(x, 1, lambda));
  const Tensor slope = where(greater_than(x, full_like(x, lambda)), ones(x), sigmoid(x));  // of softplus
  return times(out_grad, add(t, multiply(multiply(x, rest_of_square(t)), slope)));
}

Tensor tanh_shrink_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, square(tanh(widened(x)))); }

Tensor stanh_grad(const Tensor& x, const Tensor& out_grad, float scale_a, float scale_b) {
  const double both = static_cast<double>(scale_a) * static_cast<double>(scale_b);
  return times(out_grad, scale(rest_of_square(tanh(scale(widened(x), scale_a))), both));
}

}  // namespace shard::external

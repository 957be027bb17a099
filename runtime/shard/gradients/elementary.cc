// Gradients of ops of elementary.yaml for recorded calls, as composites of other ops: the kernels of
// the same names are not differentiated.
#include <limits>
#include <numbers>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/elementary_ops.h"

namespace shard::external {

using gradients::times;
using gradients::widened;

namespace {

/// sign * x^2 + offset.
Tensor of_square(const Tensor& x, double sign, double offset) { return scale(square(widened(x)), sign, offset); }

}  // namespace

Tensor erf_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, scale(exp(of_square(x, -1, 0)), 2 * std::numbers::inv_sqrtpi));
}

Tensor expm1_grad(const Tensor& out, const Tensor& out_grad) { return times(out_grad, scale(widened(out), 1, 1)); }

Tensor log1p_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, reciprocal(scale(widened(x), 1, 1)));
}

Tensor log2_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, scale(reciprocal(widened(x)), 1 / std::numbers::ln2));
}

Tensor log10_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, scale(reciprocal(widened(x)), 1 / std::numbers::ln10));
}

Tensor tan_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, scale(square(tan(widened(x))), 1, 1));
}

Tensor asin_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, rsqrt(of_square(x, -1, 1))); }

Tensor acos_grad(const Tensor& x, const Tensor& out_grad) {
  return times(out_grad, scale(rsqrt(of_square(x, -1, 1)), -1));
}

Tensor atan_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, reciprocal(of_square(x, 1, 1))); }

Tensor sinh_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, cosh(widened(x))); }

Tensor cosh_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, sinh(widened(x))); }

Tensor asinh_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, rsqrt(of_square(x, 1, 1))); }

Tensor acosh_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, rsqrt(of_square(x, 1, -1))); }

Tensor atanh_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, reciprocal(of_square(x, -1, 1))); }

Tensor reciprocal_grad(const Tensor& out, const Tensor& out_grad) { return times(out_grad, of_square(out, -1, 0)); }

Tensor logit_grad(const Tensor& given, const Tensor& out_grad, float eps) {
  const Tensor x = widened(given), slope = reciprocal(multiply(x, scale(x, -1, 1)));
  const Tensor outside =
      logical_or(less_than(x, full_like(x, eps)), greater_than(x, full_like(x, 1 - static_cast<double>(eps))));
  return times(out_grad, where(outside, full_like(x, eps == 0 ? std::numeric_limits<double>::quiet_NaN() : 0), slope));
}

}  // namespace shard::external

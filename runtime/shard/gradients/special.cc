// Gradients of ops of special.yaml.
#include <cmath>
#include <numbers>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/special_ops.h"

namespace shard::external {

using gradients::times;
using gradients::widened;

namespace {

/// The slope of i1 or i1e: `elsewhere` - out / x, which is 1/2 at 0, where both may be too small for a quotient.
Tensor bessel_slope(const Tensor& x, const Tensor& out, const Tensor& elsewhere) {
  const Tensor is_0 = less_than(abs(x), full_like(x, 1e-30)), divisor = where(is_0, full_like(x, 1), x);
  return where(is_0, full_like(x, 0.5), subtract(elsewhere, divide(out, divisor)));
}

}  // namespace

Tensor lgamma_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, digamma(widened(x))); }

Tensor digamma_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, polygamma(widened(x), 1)); }

Tensor polygamma_grad(const Tensor& x, const Tensor& out_grad, int n) {
  return times(out_grad, polygamma(widened(x), n + 1));
}

Tensor erfinv_grad(const Tensor& out, const Tensor& out_grad) {
  return times(out_grad, scale(exp(square(widened(out))), std::sqrt(std::numbers::pi) / 2));
}

Tensor i0_grad(const Tensor& x, const Tensor& out_grad) { return times(out_grad, i1(widened(x))); }

// These compute the output again: the saved one may have overflowed, and is rounded in 16 bits.

Tensor i0e_grad(const Tensor& given, const Tensor& out_grad) {
  const Tensor x = widened(given);
  return times(out_grad, subtract(i1e(x), multiply(sign(x), i0e(x))));
}

Tensor i1_grad(const Tensor& given, const Tensor& out_grad) {
  // exp(|x|) overflows before the slope does.
  const Tensor x = widened(given), size = abs(x), factor = exp(scale(size, 0.5));
  const Tensor slope = multiply(multiply(bessel_slope(x, i1e(x), i0e(x)), factor), factor);
  return times(out_grad, where(isinf(x), size, slope));
}

Tensor i1e_grad(const Tensor& given, const Tensor& out_grad) {
  const Tensor x = widened(given), out = i1e(x);
  return times(out_grad, bessel_slope(x, out, subtract(i0e(x), multiply(sign(x), out))));
}

}  // namespace shard::external

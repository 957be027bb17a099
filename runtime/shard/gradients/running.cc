// Gradients of running products and of running sums of exponentials, which are composites of other ops.
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/reduce_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::widened;

Tensor cumprod_grad(const Tensor& given_x, const Tensor& given_out, const Tensor& given_grad, int dim) {
  const Tensor x = widened(given_x), out = widened(given_out), out_grad = widened(given_grad);
  const auto sums_from_end = [&](const Tensor& value) { return cumsum(value, dim, false, false, /*reverse=*/true); };
  // Before the first 0 of a line, an element times its gradient is the sum of out_grad * out from
  // there on. The 0 itself is treated as a 1, and what comes after it has no influence.
  const Tensor zero = logical_not(x), count = cumsum(cast(zero, DType::int64), dim);
  const Tensor before = logical_not(count), first = logical_and(zero, equal(count, full_like(count, 1)));
  const Tensor none = full_like(x, 0), one = full_like(x, 1);
  const Tensor past = divide(sums_from_end(multiply(out_grad, out)), where(zero, one, x));
  const Tensor at_zero = sums_from_end(multiply(out_grad, cumprod(where(first, one, x), dim)));
  return narrowed(where(before, past, where(first, at_zero, none)), given_grad.dtype());
}

Tensor logcumsumexp_grad(const Tensor& given_x, const Tensor& given_out, const Tensor& given_grad, int axis,
                         bool flatten, bool exclusive, bool reverse) {
  const Tensor out = widened(given_out), out_grad = widened(given_grad);
  const Tensor x = flatten ? reshape(widened(given_x), out.dims()) : widened(given_x);
  const Tensor zero = full_like(out, 0), one = full_like(out, 1);
  const Tensor empty_sum = full_like(out, -std::numeric_limits<double>::infinity());
  const Tensor divisor = where(equal(out, empty_sum), zero, out);  // where a sum is 0, so are its summands
  // The sum of out_grad * exp(x - out) over all results that have x in them, computed with
  // logarithms, so that it does not overflow: apart for gradients of either sign.
  const auto part = [&](const Tensor& grad) {
    const Tensor positive = logical_not(less_equal(grad, zero));  // NaN too, which stays NaN
    const Tensor logarithm = where(positive, log(where(positive, grad, one)), empty_sum);
    return exp(add(logcumsumexp(subtract(logarithm, divisor), flatten ? 0 : axis, false, exclusive, !reverse), x));
  };
  const Tensor grad = subtract(part(out_grad), part(scale(out_grad, -1)));
  return narrowed(flatten ? reshape(grad, given_x.dims()) : grad, given_grad.dtype());
}

}  // namespace shard::external

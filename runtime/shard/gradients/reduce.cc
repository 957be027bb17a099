// Gradients of ops of reduce.yaml, which are composites of other ops.
#include "shard/ops/reduce_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::narrowed;
using gradients::spread;
using gradients::sum_to;
using gradients::times;
using gradients::widened;

namespace {

/// The axes that a reduction of `rank` dims over `axis` (all when empty) reduces, in ascending
/// order.
IntArray reduced_axes(int rank, const IntArray& axis) {
  IntArray axes;
  for (int d = 0; d < rank; ++d) {
    if (axis.empty() || std::any_of(axis.begin(), axis.end(), [&](int64_t a) { return a == d || a + rank == d; }))
      axes.push_back(d);
  }
  return axes;
}

/// A result of a reduction of `x`, or its gradient, with reduced dims of size 1, so that it
/// broadcasts to x.
Tensor keep_dims(const Tensor& out, const Tensor& x, const IntArray& axis) {
  const int rank = x.dims().rank();
  return out.dims().rank() == rank ? out : unsqueeze(out, reduced_axes(rank, axis));
}

/// `grad` where `mask` holds, else 0.
Tensor grad_where(const Tensor& mask, const Tensor& grad) { return where(mask, grad, full_like(grad, 0)); }

Tensor to_all_equal(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis) {
  return grad_where(equal(x, keep_dims(out, x, axis)), keep_dims(out_grad, x, axis));
}

Tensor shared_by_equal(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis) {
  const Tensor mask = equal(x, keep_dims(out, x, axis));
  const Tensor count = cast(sum(mask, axis, /*keepdim=*/true), x.dtype());
  return grad_where(mask, divide(keep_dims(out_grad, x, axis), count));
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A result in 16 bits is too coarse for the gradient, and is computed again from the widened x.
bool has_16_bits(const Tensor& x) { return compute_dtype(x.dtype()) != x.dtype(); }

int64_t reduced_count(const Tensor& x, const IntArray& axis) {
  int64_t count = 1;
  for (int64_t reduced : reduced_axes(x.dims().rank(), axis)) count *= x.dims()[static_cast<int>(reduced)];
  return count;
}

Tensor distances(const Tensor& x, const IntArray& axis) { return subtract(x, mean(x, axis, /*keepdim=*/true)); }

double divisor_of_variance(const Tensor& x, const IntArray& axis, bool unbiased) {
  return static_cast<double>(std::max<int64_t>(reduced_count(x, axis) - (unbiased ? 1 : 0), 1));
}

}  // namespace

Tensor sum_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axis, bool) {
  return spread(keep_dims(out_grad, x, axis), x);
}

Tensor mean_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axis, bool) {
  const double count = static_cast<double>(std::max<int64_t>(reduced_count(x, axis), 1));
  return spread(scale(keep_dims(out_grad, x, axis), 1 / count), x);
}

Tensor max_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis, bool) {
  return to_all_equal(x, out, out_grad, axis);
}

Tensor min_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis, bool) {
  return to_all_equal(x, out, out_grad, axis);
}

Tensor amax_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis, bool) {
  return shared_by_equal(x, out, out_grad, axis);
}

Tensor amin_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis, bool) {
  return shared_by_equal(x, out, out_grad, axis);
}

Tensor prod_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axis, bool) {
  // The product of the other elements is the product of all nonzero elements divided by this
  // element, unless there is a 0 among the others.
  const Tensor zero = logical_not(x);
  const Tensor number = where(zero, full_like(x, 1), x);
  const Tensor others = divide(prod(number, axis, /*keepdim=*/true), number);
  const Tensor zeros_besides = subtract(sum(zero, axis, /*keepdim=*/true), cast(zero, DType::int64));
  return grad_where(logical_not(zeros_besides), multiply(keep_dims(out_grad, x, axis), others));
}

Tensor squared_l2_norm_grad(const Tensor& x, const Tensor& out_grad) {
  return sum_to(multiply(x, scale(out_grad, 2)), x.dims());  // out_grad is [1], and x may be a scalar
}

Tensor frobenius_norm_grad(const Tensor& x, const Tensor& out, const Tensor& out_grad, const IntArray& axis, bool,
                           bool reduce_all) {
  // Where the norm is 0 all elements are 0: computes 0 * 1 instead of 0 / 0.
  const Tensor norm = where(logical_not(out), full_like(out, 1), out);
  return multiply(x, keep_dims(divide(out_grad, norm), x, reduce_all ? IntArray() : axis));
}

Tensor logsumexp_grad(const Tensor& given_x, const Tensor& given_out, const Tensor& out_grad, const IntArray& axis,
                      bool keepdim, bool reduce_all) {
  const IntArray axes = reduce_all ? IntArray() : axis;
  const Tensor x = widened(given_x);
  const Tensor out = has_16_bits(given_x) ? shard::logsumexp(x, axis, keepdim, reduce_all) : given_out;
  const Tensor total = where(equal(out, full_like(out, -kInfinity)), full_like(out, 0), out);
  return times(keep_dims(out_grad, x, axes), exp(subtract(x, keep_dims(total, x, axes))));
}

Tensor p_norm_grad(const Tensor& given_x, const Tensor& given_out, const Tensor& out_grad, float porder, int axis,
                   float epsilon, bool keepdim, bool asvector) {
  const IntArray axes = asvector ? IntArray() : IntArray{axis};
  const Tensor grad = keep_dims(out_grad, given_x, axes);
  if (porder == 0) return spread(scale(grad, 0), given_x);
  if (porder == 1) return multiply(sign(given_x), grad);
  if (std::isinf(porder))
    return grad_where(equal(abs(given_x), keep_dims(given_out, given_x, axes)), multiply(sign(given_x), grad));
  const Tensor x = widened(given_x);
  const Tensor out =
      keep_dims(has_16_bits(given_x) ? shard::p_norm(x, porder, axis, epsilon, keepdim, asvector) : given_out, x, axes);
  const Tensor norm = where(logical_not(out), full_like(out, 1), out);
  if (porder == 2) return times(grad, divide(x, norm));
  // A power may have no derivative at 0; the norm is 0 beside other elements than 0 where the order is negative.
  const Tensor smooth = logical_and(x, out);
  const Tensor share = divide(where(smooth, abs(x), full_like(x, 1)), norm);
  return times(grad, grad_where(smooth, multiply(sign(x), pow(share, static_cast<double>(porder) - 1))));
}

Tensor l1_norm_grad(const Tensor& x, const Tensor& out_grad) { return multiply(sign(x), out_grad); }

Tensor norm_grad(const Tensor& given_x, const Tensor& given_norm, const Tensor& out_grad, const Tensor& norm_grad,
                 int axis, float epsilon, bool) {
  const Tensor x = widened(given_x);
  Tensor norm = given_norm, unit;
  if (has_16_bits(given_x)) std::tie(unit, norm) = shard::norm(x, axis, epsilon);
  else unit = divide(x, norm);
  const Tensor wide = widened(out_grad);
  const Tensor along_unit = sum(multiply(wide, unit), {axis}, /*keepdim=*/true);
  const Tensor of_unit = subtract(along_unit, multiply(widened(norm_grad), norm));
  return narrowed(divide(subtract(wide, multiply(unit, of_unit)), norm), given_x.dtype());
}

Tensor var_grad(const Tensor& given_x, const Tensor& out_grad, const IntArray& axis, bool unbiased, bool) {
  const Tensor x = widened(given_x);
  return times(keep_dims(out_grad, x, axis), scale(distances(x, axis), 2 / divisor_of_variance(x, axis, unbiased)));
}

Tensor std_grad(const Tensor& given_x, const Tensor& given_out, const Tensor& out_grad, const IntArray& axis,
                bool unbiased, bool keepdim) {
  const Tensor x = widened(given_x);
  const Tensor out = has_16_bits(given_x) ? shard::std_op(x, axis, unbiased, keepdim) : given_out;
  const Tensor zero = logical_not(out);  // where the root has no derivative
  const Tensor factor = grad_where(logical_not(zero), divide(full_like(out, 1 / divisor_of_variance(x, axis, unbiased)),
                                                             where(zero, full_like(out, 1), out)));
  return times(keep_dims(out_grad, x, axis), multiply(distances(x, axis), keep_dims(factor, x, axis)));
}

}  // namespace shard::external

// Gradients of ops of reduce.yaml, which are composites of other ops.
#include "shard/ops/reduce_ops.h"

#include <algorithm>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::spread;
using gradients::sum_to;

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

}  // namespace

Tensor sum_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axis, bool) {
  return spread(keep_dims(out_grad, x, axis), x);
}

Tensor mean_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axis, bool) {
  int64_t count = 1;
  for (int64_t reduced : reduced_axes(x.dims().rank(), axis)) count *= x.dims()[static_cast<int>(reduced)];
  return spread(scale(keep_dims(out_grad, x, axis), 1 / static_cast<double>(std::max<int64_t>(count, 1))), x);
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

}  // namespace shard::external

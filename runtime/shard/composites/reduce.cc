// Ops of reduce.yaml that are composites of other ops.
#include "shard/ops/reduce_ops.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/gradients/common.h"
#include "shard/ops/api.h"

namespace shard::external {

using gradients::narrowed;
using gradients::widened;

namespace {

IntArray all_axes(const Tensor& x) {
  IntArray axes;
  for (int d = 0; d < x.dims().rank(); ++d) axes.push_back(d);
  return axes;
}

/// The variance of x, which is wide.
Tensor variance_of(const char* op, const Tensor& x, const IntArray& axis, bool unbiased, bool keepdim) {
  if (!is_floating(x.dtype())) {
    fail(ErrorCode::dtype_mismatch, "[{}] x is {}, but must be of a float dtype; cast it", op, to_string(x.meta()));
  }
  const Tensor center = mean(x, axis, /*keepdim=*/true);
  const int64_t results = center.dims().numel(), count = results == 0 ? 1 : x.dims().numel() / results;
  const int64_t divisor = unbiased && count > 0 ? std::max<int64_t>(count - 1, 1) : count;
  const Tensor distance = subtract(x, center);
  return scale(sum(multiply(distance, distance), axis, keepdim), 1 / static_cast<double>(divisor));
}

}  // namespace

Tensor logsumexp(const Tensor& given_x, const IntArray& axis, bool keepdim, bool reduce_all) {
  const Tensor x = widened(given_x);
  const IntArray axes = reduce_all || axis.empty() ? all_axes(x) : axis;
  const Tensor largest = max(x.detach(), axes, /*keepdim=*/true);
  const Tensor shift = where(isinf(largest), full_like(largest, 0), largest);  // infinity - infinity is NaN
  const Tensor out = add(log(sum(exp(subtract(x, shift)), axes, /*keepdim=*/true)), shift);
  return narrowed(keepdim || x.dims().rank() == 0 ? out : squeeze(out, axes), given_x.dtype());
}

Tensor p_norm(const Tensor& given_x, float porder, int axis, float, bool keepdim, bool asvector) {
  const Tensor x = widened(given_x);
  const IntArray axes = asvector || x.dims().rank() == 0 ? all_axes(x) : IntArray{axis};
  const auto norm = [&] {
    if (porder == 2) return frobenius_norm(x, axes, keepdim, false);
    const Tensor size = abs(x);
    if (porder == 0) return sum(cast(cast(size, DType::boolean), x.dtype()), axes, keepdim);
    if (porder == 1) return sum(size, axes, keepdim);
    if (std::isinf(porder)) return porder > 0 ? max(size, axes, keepdim) : min(size, axes, keepdim);
    const Tensor total = sum(pow(size, porder), axes, keepdim);
    const Tensor zero = logical_not(total);  // where a root has no derivative
    const Tensor root = pow(where(zero, full_like(total, 1), total), 1 / static_cast<double>(porder));
    return where(zero, full_like(total, 0), root);
  };
  return narrowed(norm(), given_x.dtype());
}

std::tuple<Tensor, Tensor> norm(const Tensor& given_x, int axis, float epsilon, bool) {
  const Tensor x = widened(given_x);
  const Tensor size = sqrt(scale(sum(multiply(x, x), {axis}, /*keepdim=*/true), 1, epsilon));
  return {narrowed(divide(x, size), given_x.dtype()), narrowed(size, given_x.dtype())};
}

Tensor l1_norm(const Tensor& x) { return sum(abs(x), {}, false); }

Tensor mean_all(const Tensor& x) { return mean(x, {}, false); }

Tensor var(const Tensor& x, const IntArray& axis, bool unbiased, bool keepdim) {
  return narrowed(variance_of("var", widened(x), axis, unbiased, keepdim), x.dtype());
}

Tensor std(const Tensor& x, const IntArray& axis, bool unbiased, bool keepdim) {
  const Tensor variance = variance_of("std", widened(x), axis, unbiased, keepdim);
  const Tensor zero = logical_not(variance);  // where the root has no derivative
  const Tensor root = sqrt(where(zero, full_like(variance, 1), variance));
  return narrowed(where(zero, full_like(variance, 0), root), x.dtype());
}

Tensor median(const Tensor& given_x, const IntArray& axis, bool keepdim, const std::string& mode) {
  if (given_x.dtype() == DType::boolean) {
    fail(ErrorCode::dtype_mismatch, "[median] x is {}, but must be of numbers; cast it", to_string(given_x.meta()));
  }
  const bool floating = is_floating(given_x.dtype()), halves = !floating && mode == "avg";
  const Tensor x = halves ? cast(given_x, DType::float64) : given_x;
  const Tensor middle = std::get<0>(nanmedian(x, axis, keepdim, mode));
  if (!floating) return halves ? cast(middle, DType::float32) : middle;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return where(any(isnan(x), axis, keepdim), full_like(middle, nan), middle);
}

Tensor reduce_as(const Tensor& x, const Tensor& target) {
  const Dims &from = x.dims(), &to = target.dims();
  const int lead = from.rank() - to.rank();
  IntArray summed, dropped;
  bool fits = lead >= 0;
  for (int d = 0; fits && d < from.rank(); ++d) {
    if (d < lead) dropped.push_back(d);
    if (d < lead || (to[d - lead] == 1 && from[d] != 1)) summed.push_back(d);
    else fits = from[d] == to[d - lead];
  }
  if (!fits) {
    fail(ErrorCode::shape_mismatch, "[reduce_as] target is {}, but must broadcast to x, which is {}", to_string(to),
         to_string(from));
  }
  if (summed.empty()) return is_floating(x.dtype()) ? assign(x) : cast(x, DType::int64);
  const Tensor sums = sum(x, summed, /*keepdim=*/true);
  return dropped.empty() ? sums : squeeze(sums, dropped);
}

}  // namespace shard::external

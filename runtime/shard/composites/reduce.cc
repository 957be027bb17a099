// Ops of reduce.yaml that are composites of other ops.
#include "shard/ops/reduce_ops.h"

#include <cmath>

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

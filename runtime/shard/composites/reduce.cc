// Ops of reduce.yaml that are composites of other ops.
#include "shard/ops/reduce_ops.h"

#include <limits>

#include "shard/ops/api.h"

namespace shard::external {

Tensor mean_all(const Tensor& x) { return mean(x, {}, false); }

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

// Ops of dynamic.yaml that are made of other ops.
#include "shard/core/error.h"
#include "shard/ops/api.h"
#include "shard/ops/dynamic_ops.h"

namespace shard::external {

std::tuple<Tensor, Tensor, Tensor> unique_consecutive(const Tensor& x, bool return_inverse, bool return_counts,
                                                      const IntArray& axis, DType dtype) {
  if (axis.size() > 1) {
    fail(ErrorCode::invalid_argument,
         "[unique_consecutive] axis is {}, but must be one axis, or empty for all elements in row-major order",
         to_string(axis));
  }
  if (axis.empty()) return unique_consecutive_rows(flatten(x, 0, -1), return_inverse, return_counts, dtype);
  const int rank = x.dims().rank(), along = normalize_axis("unique_consecutive", "axis", axis[0], rank);
  if (along == 0) return unique_consecutive_rows(x, return_inverse, return_counts, dtype);
  IntArray swapped;  // axis in exchange for the first dim
  for (int d = 0; d < rank; ++d) swapped.push_back(d == 0 ? along : d == along ? 0 : d);
  const auto [rows, index, counts] =
      unique_consecutive_rows(transpose(x, swapped), return_inverse, return_counts, dtype);
  return {transpose(rows, swapped), index, counts};
}

}  // namespace shard::external

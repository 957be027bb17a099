// Gradients of ops of sort.yaml, and of the running functions of reduce.yaml that return indices:
// each result passes its gradient to the element that it is a copy of.
#include "shard/ops/sort_ops.h"

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/reduce_ops.h"

namespace shard::external {
namespace {

Tensor to_selected(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis) {
  const int rank = x.dims().rank();
  const int64_t size = rank == 0 ? 1 : x.dims()[axis < 0 ? axis + rank : axis];
  return sum_along_axis(out_grad, gradients::narrowed(indices, DType::int64), size, axis);
}

/// The same for results that lack the axis unless `keepdim` is set.
Tensor to_selected_one(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, bool keepdim) {
  if (keepdim || x.dims().rank() == 0) return to_selected(x, indices, out_grad, axis);
  return to_selected(x, unsqueeze(indices, {axis}), unsqueeze(out_grad, {axis}), axis);
}

}  // namespace

Tensor topk_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, const Scalar&, int axis, bool, bool) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor argsort_grad(const Tensor& indices, const Tensor& x, const Tensor& out_grad, int axis, bool, bool) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor kthvalue_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int, int axis, bool keepdim) {
  return to_selected_one(x, indices, out_grad, axis, keepdim);
}

Tensor mode_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, bool keepdim) {
  return to_selected_one(x, indices, out_grad, axis, keepdim);
}

Tensor gather_along_axis_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor cummax_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor cummin_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

}  // namespace shard::external

// Gradients of ops of sort.yaml, and of the running functions of reduce.yaml that return indices:
// each result passes its gradient to the element that it is a copy of.
#include "shard/ops/sort_ops.h"

#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/reduce_ops.h"

namespace shard::external {
namespace {

Tensor to_selected(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis) {
  if (x.dims().rank() == 0) return out_grad;
  const Tensor grad = gradients::widened(out_grad);  // elements that were selected often get long sums
  return gradients::narrowed(
      put_along_axis(gradients::narrowed(full_like(x, 0), grad.dtype()), indices, grad, axis, "add"), out_grad.dtype());
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

Tensor cummax_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor cummin_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

}  // namespace shard::external

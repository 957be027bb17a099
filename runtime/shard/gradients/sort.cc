// Gradients of ops of sort.yaml, and of the functions of reduce.yaml that return indices:
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

Tensor nanmedian_grad(const Tensor& x, const Tensor& medians, const Tensor& out_grad, const IntArray& axis, bool,
                      const std::string& mode) {
  const Dims& dims = x.dims();
  const Tensor zeros = full_like(x.detach(), 0);
  if (x.numel() == 0) return zeros;
  // The reduced dims go last and become one, whose places medians has.
  unsigned reduced = axis.empty() ? ~0u : 0;
  for (const int64_t a : axis) reduced |= 1u << normalize_axis("nanmedian_grad", "axis", a, dims.rank());
  IntArray order, row, whole;
  for (int d = 0; d < dims.rank(); ++d) {
    if ((reduced >> d & 1u) == 0) order.push_back(d), row.push_back(dims[d]), whole.push_back(dims[d]);
  }
  for (int d = 0; d < dims.rank(); ++d) {
    if ((reduced >> d & 1u) != 0) order.push_back(d), whole.push_back(dims[d]);
  }
  IntArray back = order, places = row;
  for (size_t d = 0; d < order.size(); ++d) back[static_cast<size_t>(order[d])] = static_cast<int64_t>(d);
  row.push_back(1);
  places.push_back(mode == "avg" ? 2 : 1);
  const int along = static_cast<int>(places.size()) - 1;
  IntArray lines = row;
  lines[static_cast<size_t>(along)] = -1;
  const Tensor at = reshape(medians, places), first = full_like(at, 0), is_number = greater_equal(at, first);
  const Tensor share = scale(reshape(gradients::widened(out_grad), row), mode == "avg" ? 0.5 : 1.0);
  const Tensor values = expand(share, places);
  const Tensor sums =
      put_along_axis(reshape(transpose(gradients::widened(zeros), order), lines), where(is_number, at, first),
                     where(is_number, values, full_like(values.detach(), 0)), along, "add");
  return gradients::narrowed(transpose(reshape(sums, whole), back), x.dtype());
}

Tensor cummax_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

Tensor cummin_grad(const Tensor& x, const Tensor& indices, const Tensor& out_grad, int axis, DType) {
  return to_selected(x, indices, out_grad, axis);
}

}  // namespace shard::external

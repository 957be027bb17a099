// Gradients of ops of indexing.yaml that are composites of other ops. Tensors of which only the
// shape is used may have no data.
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/indexing_ops.h"

namespace shard::external {

using gradients::narrowed;
using gradients::widened;

namespace {

using Pair = std::tuple<Tensor, Tensor>;

Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }

/// x with 0 at the indices.
Tensor cleared(const Tensor& x, const Tensor& indices, const Tensor& values, int axis) {
  return put_along_axis(x, indices, zeros_like(values), axis);
}

/// Where the value of an index is the last one that is written there.
Tensor written_last(const Tensor& arr, const Tensor& indices, int axis) {
  const Tensor number = cumsum(full_like(indices, 1), axis);
  const Tensor last = put_along_axis(cast(zeros_like(arr), indices.dtype()), indices, number, axis);
  return equal(take_along_axis(last, indices, axis), number);
}

/// The product of the other factors, from the product of all factors that are not 0 and the number of those that are.
Tensor product_of_others(const Tensor& factor, const Tensor& product, const Tensor& zeros) {
  const Tensor zero = zeros_like(factor), one = full_like(factor, 1), is_zero = equal(factor, zero);
  const Tensor beside_zero = where(equal(zeros, one), product, zero);
  const Tensor beside_other = where(equal(zeros, zero), divide(product, where(is_zero, one, factor)), zero);
  return where(is_zero, beside_zero, beside_other);
}

/// The arguments of put_along_axis and its gradient; values are those in the dtype in which kernels compute.
struct Put {
  const Tensor &arr, &indices, &values;
  int axis;
  bool include_self;

  Tensor take(const Tensor& x) const { return take_along_axis(x, indices, axis); }
  Tensor put(const Tensor& x, const Tensor& y, const char* reduce) const {
    return put_along_axis(x, indices, y, axis, reduce, include_self);
  }
  Pair product_grad(const Tensor& grad) const {
    const auto is_zero = [](const Tensor& x) { return equal(x, zeros_like(x)); };
    const auto without_zeros = [&](const Tensor& x) { return where(is_zero(x), full_like(x, 1), x); };
    const Tensor product = put(without_zeros(arr), without_zeros(values), "multiply");
    const Tensor zeros = put(cast(is_zero(arr), arr.dtype()), cast(is_zero(values), arr.dtype()), "add");
    return {multiply(grad, product_of_others(arr, product, zeros)),
            multiply(take(grad), product_of_others(values, take(product), take(zeros)))};
  }
  /// Each of equal winners gets the same share.
  Pair extremum_grad(const Tensor& out, const Tensor& grad) const {
    const Tensor arr_wins = equal(arr, out), value_wins = equal(values, take(out));
    const Tensor winners = put(cast(arr_wins, arr.dtype()), cast(value_wins, arr.dtype()), "add");
    const Tensor share = divide(grad, winners);
    return {where(arr_wins, share, zeros_like(share)), where(value_wins, take(share), zeros_like(values))};
  }
  Pair mean_grad(const Tensor& grad) const {
    const Tensor share = divide(grad, put(full_like(arr, 1), full_like(values, 1), "add"));
    return {share, take(share)};
  }
};

}  // namespace

Tensor roll_grad(const Tensor& out_grad, const IntArray& shifts, const IntArray& axis) {
  IntArray back = shifts;
  for (int64_t& shift : back) shift = -shift;
  return roll(out_grad, back, axis);
}

Tensor pad_grad(const Tensor& out_grad, const IntArray& paddings) {
  IntArray axes, starts, ends;
  for (int d = 0; d < out_grad.dims().rank(); ++d) {
    axes.push_back(d);
    starts.push_back(paddings[2 * static_cast<size_t>(d)]);
    ends.push_back(out_grad.dims()[d] - paddings[2 * static_cast<size_t>(d) + 1]);
  }
  return slice(out_grad, axes, starts, ends);
}

Tensor gather_nd_grad(const Tensor& x, const Tensor& index, const Tensor& out_grad) {
  return scatter_nd_add(zeros_like(x), index, out_grad);
}

Pair scatter_nd_add_grad(const Tensor& index, const Tensor& out_grad, GradMask wanted) {
  return {wanted[0] ? out_grad : Tensor(), wanted[1] ? gather_nd(out_grad, index) : Tensor()};
}

Pair index_add_grad(const Tensor& index, const Tensor& out_grad, int axis, GradMask wanted) {
  return {wanted[0] ? out_grad : Tensor(), wanted[1] ? gather(out_grad, index, axis) : Tensor()};
}

Tensor take_along_axis_grad(const Tensor& arr, const Tensor& indices, const Tensor& out_grad, int axis) {
  return put_along_axis(zeros_like(arr), indices, out_grad, axis, "add");
}

Pair put_along_axis_grad(const Tensor& arr, const Tensor& indices, const Tensor& values, const Tensor& out,
                         const Tensor& out_grad, int axis, const std::string& reduce, bool include_self,
                         GradMask wanted) {
  Pair grads;
  auto& [arr_grad, values_grad] = grads;
  if (reduce == "assign" || reduce == "add") {
    if (wanted[0]) arr_grad = out_grad;
    if (wanted[1]) values_grad = take_along_axis(out_grad, indices, axis);
    if (wanted[1] && reduce == "assign")
      values_grad = where(written_last(arr, indices, axis), values_grad, zeros_like(values_grad));
  } else {
    const Tensor wide_arr = widened(arr), wide_values = widened(values), grad = widened(out_grad);
    const Put put = {wide_arr, indices, wide_values, axis, include_self};
    if (reduce == "mean") grads = put.mean_grad(grad);
    else if (reduce == "amax" || reduce == "amin") grads = put.extremum_grad(widened(out), grad);
    else grads = put.product_grad(grad);
    arr_grad = narrowed(arr_grad, arr.dtype());
    values_grad = narrowed(values_grad, arr.dtype());
  }
  if (wanted[0] && (reduce == "assign" || !include_self)) arr_grad = cleared(arr_grad, indices, values, axis);
  return grads;
}

Tensor view_dtype_grad(const Tensor& input, const Tensor& out_grad, DType dtype) {
  if (dtype == input.dtype()) return out_grad;
  fail(ErrorCode::autograd,
       "[view_dtype_grad] input is {} and is viewed as {}: the bits of one have no gradient in the other; use cast, or "
       "pass detach() of input",
       to_string(input.meta()), to_string(dtype));
}

Tensor unfold_grad(const Tensor& x, const Tensor& out_grad, const IntArray& kernel_sizes, const IntArray& strides,
                   const IntArray& paddings, const IntArray& dilations) {
  return fold(out_grad, {x.dims()[2], x.dims()[3]}, kernel_sizes, strides, paddings, dilations);
}

}  // namespace shard::external

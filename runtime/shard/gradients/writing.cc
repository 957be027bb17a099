// Gradients of the ops of writing.yaml, which are composites of other ops. Values of which only the shape is used may have
// no data.
#include <algorithm>

#include "shard/dist/dist_tensor.h"
#include "shard/gradients/common.h"
#include "shard/meta/writing.h"
#include "shard/ops/api.h"
#include "shard/ops/writing_ops.h"

namespace shard::external {

using gradients::sum_to;

namespace {

using Pair = std::tuple<Tensor, Tensor>;

Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }

/// The positions that the indices select, along each dim of x in which they do: int64, of one shape.
std::vector<Tensor> positions_of(const std::vector<Tensor>& indices) {
  std::vector<Tensor> all;
  for (const Tensor& index : indices) {
    if (index.dtype() != DType::boolean) {
      all.push_back(cast(index, DType::int64));
      continue;
    }
    for (const Tensor& column : unbind(nonzero(index), 1)) all.push_back(column);
  }
  return broadcast_tensors(all);
}

/// Zeros (int64) of the shape of the first `rank` dims of x, sharded like them.
Tensor leading_zeros(const Tensor& x, int rank) {
  Dims dims;
  for (int d = 0; d < rank; ++d) dims.push_back(x.dims()[d]);
  if (!x.is_dist()) return zeros(dims, DType::int64, x.device());
  const Layout& of = spec_of(x)->layout();
  Layout layout(of.mesh, rank);
  for (size_t d = 0; d < static_cast<size_t>(rank); ++d) layout.dims[d] = of.dims[d];
  return zeros(dims, DistSpec::make(layout), DType::int64, x.device());
}

/// For each place that the positions name in x: whether it is the last one of those that are equal.
Tensor is_last(const Tensor& x, const std::vector<Tensor>& positions, const Tensor& rows) {
  const Tensor& any = positions[0];
  const Tensor number = reshape(cumsum(full_like(any, 1), 0, /*flatten=*/true), any.dims());
  const Tensor last = index_put(leading_zeros(x, static_cast<int>(positions.size())), positions, number);
  return equal(gather_nd(last, rows), number);
}

bool are_masks(const std::vector<Tensor>& indices) {
  return std::all_of(indices.begin(), indices.end(), [](const Tensor& x) { return x.dtype() == DType::boolean; });
}

}  // namespace

Pair index_put_grad(const std::vector<Tensor>& indices, const Tensor& value, const Tensor& out_grad, bool accumulate,
                    GradMask wanted) {
  Pair grads;
  auto& [x_grad, value_grad] = grads;
  if (wanted[0]) x_grad = accumulate ? out_grad : index_put(out_grad, indices, zeros_like(value));
  if (!wanted[1]) return grads;
  const std::vector<Tensor> positions = positions_of(indices);
  const Tensor rows = stack(positions, -1), taken = gather_nd(out_grad, rows);
  if (accumulate || are_masks(indices)) {
    value_grad = sum_to(taken, value.dims());
    return grads;
  }
  Tensor last = is_last(out_grad, positions, rows);
  for (int d = last.dims().rank(); d < taken.dims().rank(); ++d) last = unsqueeze(last, {d});
  value_grad = sum_to(where(last, taken, zeros_like(taken)), value.dims());
  return grads;
}

Tensor set_value_grad(const Tensor& out_grad, const IntArray& starts, const IntArray& ends, const IntArray& steps,
                      const IntArray& axes, const IntArray& decrease_axes, const IntArray& none_axes) {
  return set_value(out_grad, starts, ends, steps, axes, decrease_axes, none_axes, {1}, {0});
}

Pair set_value_with_tensor_grad(const Tensor& values, const Tensor& out_grad, const IntArray& starts,
                                const IntArray& ends, const IntArray& steps, const IntArray& axes,
                                const IntArray& decrease_axes, const IntArray& none_axes, GradMask wanted) {
  Pair grads;
  auto& [x_grad, values_grad] = grads;
  if (wanted[0]) x_grad = external::set_value_grad(out_grad, starts, ends, steps, axes, decrease_axes, none_axes);
  if (!wanted[1]) return grads;
  Tensor taken = strided_slice(out_grad, axes, starts, ends, steps);
  if (taken.numel() == 0) {  // a slice without elements has no dim of size 1 to drop
    values_grad = zeros_like(values);
    return grads;
  }
  const meta::WrittenSlice slice = meta::written_slice(ops::set_value_with_tensor.name, out_grad.dims(), starts, ends,
                                                       steps, axes, decrease_axes, none_axes);
  if (!decrease_axes.empty()) taken = squeeze(taken, decrease_axes);
  for (size_t d = 0; d < slice.dims.size(); ++d) {
    if (slice.dims[d] == meta::kNoDim) taken = unsqueeze(taken, {static_cast<int64_t>(d)});
  }
  Dims dims = values.dims();
  while (dims.rank() > taken.dims().rank()) dims.erase(0);
  values_grad = sum_to(taken, dims);
  while (values_grad.dims().rank() < values.dims().rank()) values_grad = unsqueeze(values_grad, {0});
  return grads;
}

Pair fill_diagonal_tensor_grad(const Tensor& y, const Tensor& out_grad, int64_t offset, int dim1, int dim2,
                               GradMask wanted) {
  Pair grads;
  auto& [x_grad, y_grad] = grads;
  if (wanted[0]) x_grad = fill_diagonal_tensor(out_grad, zeros_like(y), offset, dim1, dim2);
  if (wanted[1]) y_grad = diagonal(out_grad, static_cast<int>(offset), dim1, dim2);
  return grads;
}

}  // namespace shard::external

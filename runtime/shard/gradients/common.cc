// Sums and expansions for gradients of broadcasting, and dtypes of gradients that replace kernels.
#include "shard/gradients/common.h"

#include "shard/dist/dist_tensor.h"
#include "shard/ops/api.h"

namespace shard::gradients {

Tensor sum_to(const Tensor& grad, const Dims& dims) {
  const Dims& from = grad.dims();
  if (from == dims) return grad;
  const int lead = from.rank() - dims.rank();
  IntArray axes, leading;
  for (int d = 0; d < from.rank(); ++d) {
    if (d < lead) leading.push_back(d);
    if (d < lead || (dims[d - lead] == 1 && from[d] != 1)) axes.push_back(d);
  }
  const bool only_leading = static_cast<int>(axes.size()) == lead;
  const Tensor sums = sum(grad, axes, /*keepdim=*/!only_leading);
  // a 0 in the shape argument of reshape would keep a dim
  return only_leading || lead == 0 ? sums : squeeze(sums, leading);
}

Tensor spread(const Tensor& grad, const Tensor& x) {
  if (grad.dims() == x.dims()) return grad;
  if (!x.is_dist()) return expand(grad, x.dims());
  Layout layout = spec_of(x)->layout();
  layout.partial = {};
  return expand_as(grad, empty(x.dims(), DistSpec::make(layout), x.dtype(), x.device()));
}

Tensor widened(const Tensor& x) { return narrowed(x, compute_dtype(x.dtype())); }

Tensor narrowed(const Tensor& grad, DType dtype) { return grad.dtype() == dtype ? grad : cast(grad, dtype); }

Tensor times(const Tensor& grad, const Tensor& slope) { return narrowed(multiply(widened(grad), slope), grad.dtype()); }

Tensor softmax_argument_grad(const Tensor& out, const Tensor& out_grad, int axis) {
  const Tensor product = multiply(out, out_grad);
  return subtract(product, multiply(out, sum(product, {axis}, /*keepdim=*/true)));
}

}  // namespace shard::gradients

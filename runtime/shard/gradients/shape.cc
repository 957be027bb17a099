// Gradients of ops of shape.yaml that are composites of other ops. Tensors of which only the shape
// is used may have no data.
#include "shard/ops/shape_ops.h"

#include "shard/gradients/common.h"
#include "shard/ops/api.h"

namespace shard::external {
namespace {

/// Zeros of shape `dims`, from a tensor without elements. reshape cannot do this: a 0 in its shape
/// keeps a dim.
Tensor zeros_from_empty(const Tensor& empty, const Dims& dims) { return expand(sum(empty), dims); }

/// Sums a dim that has `repeats` copies of `size` elements to one copy.
Tensor sum_repeats(const Tensor& grad, int axis, int64_t repeats, int64_t size) {
  if (size == 1) return sum(grad, {axis}, true);
  Dims parts = grad.dims(), summed = parts;
  summed[axis] = size;
  if (parts.rank() < kMaxRank) {
    parts[axis] = size;
    parts.insert(axis, repeats);
    return sum(reshape(grad, parts), {axis});
  }
  // Another dim would exceed the limit, so the dims around the copies are merged.
  parts = {grad.dims().numel(0, axis), repeats, size * grad.dims().numel(axis + 1, grad.dims().rank())};
  return reshape(sum(reshape(grad, parts), {1}), summed);
}

}  // namespace

Tensor reshape_grad(const Tensor& x, const Tensor& out_grad) {
  return out_grad.numel() == 0 ? zeros_from_empty(out_grad, x.dims()) : reshape(out_grad, x.dims());
}

Tensor transpose_grad(const Tensor& out_grad, const IntArray& perm) {
  IntArray inverse = perm;
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(normalize_axis("transpose_grad", "an axis of perm", perm[i], out_grad.dims().rank()))] =
        static_cast<int64_t>(i);
  }
  return transpose(out_grad, inverse);
}

Tensor expand_grad(const Tensor& x, const Tensor& out_grad) { return gradients::sum_to(out_grad, x.dims()); }

Tensor tile_grad(const Tensor& x, const Tensor& out_grad) {
  if (out_grad.numel() == 0) return zeros_from_empty(out_grad, x.dims());
  const int rank = out_grad.dims().rank(), added = rank - x.dims().rank();
  Tensor grad = out_grad;
  for (int i = 0; i < rank; ++i) {
    const int64_t size = i < added ? 1 : x.dims()[i - added], repeats = grad.dims()[i] / size;
    if (repeats != 1) grad = sum_repeats(grad, i, repeats, size);
  }
  return reshape(grad, x.dims());
}

std::vector<Tensor> concat_grad(const std::vector<Tensor>& x, const Tensor& out_grad, const Scalar& axis) {
  const int along = normalize_axis("concat_grad", "axis", axis.to<int64_t>(), out_grad.dims().rank());
  IntArray sections;
  for (const Tensor& part : x) sections.push_back(part.dims()[along]);
  return split(out_grad, sections, along);
}

Tensor strided_slice_grad(const Tensor& x, const Tensor& out_grad, const IntArray& axes, const IntArray& starts,
                          const IntArray& ends, const IntArray& strides) {
  return unslice(out_grad, x.dims(), axes, starts, ends, strides);
}

Tensor slice_grad(const Tensor& input, const Tensor& out_grad, const IntArray& axes, const IntArray& starts,
                  const IntArray& ends, const IntArray& decrease_axis) {
  const int rank = input.dims().rank();
  unsigned is_dropped = 0;
  for (int64_t axis : decrease_axis)
    is_dropped |= 1u << normalize_axis("slice_grad", "an axis of decrease_axis", axis, rank);
  IntArray dropped, strides;
  for (int i = 0; i < rank; ++i) {
    if (is_dropped >> i & 1u) dropped.push_back(i);
  }
  for (size_t i = 0; i < axes.size(); ++i) strides.push_back(1);
  return unslice(dropped.empty() ? out_grad : unsqueeze(out_grad, dropped), input.dims(), axes, starts, ends, strides);
}

Tensor gather_grad(const Tensor& x, const Tensor& index, const Tensor& out_grad, const Scalar& axis) {
  const int along = normalize_axis("gather_grad", "axis", axis.to<int64_t>(), x.dims().rank());
  if (index.dims().rank() > 0) return index_sum(out_grad, index, x.dims()[along], along);
  return index_sum(unsqueeze(out_grad, {along}), unsqueeze(index, {0}), x.dims()[along], along);
}

}  // namespace shard::external

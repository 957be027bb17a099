// Ops of vision.yaml that are made of other ops.
#include "shard/core/error.h"
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/vision_ops.h"

namespace shard::external {
namespace {

/// The places of `size` elements from -1 to 1, as [n, .., size, .., 1] of `rank` dims, of which `axis` has them. They
/// are on the mesh of `one`, which is [n, 1, 1], and sharded like it.
Tensor places(const Tensor& one, int64_t size, int axis, int rank, bool align_corners) {
  const int64_t n = one.dims()[0];
  const Tensor numbers = cumsum(full_like(expand(one, {n, 1, size}), 1), 2);
  const auto count = static_cast<double>(size);
  const double step = align_corners ? 2 / (count - 1) : 2 / count, first = align_corners ? -1 : 1 / count - 1;
  IntArray dims(static_cast<size_t>(rank), 1);
  dims[0] = n;
  dims[static_cast<size_t>(axis)] = size;
  return reshape(size <= 1 ? full_like(numbers, 0) : scale(numbers, step, first - step), dims);
}

}  // namespace

Tensor affine_grid(const Tensor& input, const IntArray& output_shape, bool align_corners) {
  const int rank = static_cast<int>(output_shape.size()), space = rank - 2;
  if (rank != 4 && rank != 5) {
    fail(ErrorCode::invalid_argument,
         "[affine_grid] output_shape has {} sizes, but must be n, c, h, w or n, c, d, h, w", rank);
  }
  for (const int64_t size : output_shape) {
    if (size < 0) fail(ErrorCode::invalid_argument, "[affine_grid] output_shape has {}, but must be 0 or more", size);
  }
  if (!is_floating(input.dtype())) {
    fail(ErrorCode::dtype_mismatch, "[affine_grid] input is {}, but must be of a float dtype; cast it",
         to_string(input.meta()));
  }
  const int64_t n = output_shape[0];
  if (input.dims() != Dims{n, space, space + 1}) {
    fail(ErrorCode::shape_mismatch,
         "[affine_grid] input is {}, but must be [{}, {}, {}] for an output_shape of {} sizes", to_string(input.meta()),
         n, space, space + 1, rank);
  }
  const Tensor wide = gradients::widened(input), one = slice(wide.detach(), {1, 2}, {0, 0}, {1, 1});
  IntArray row(static_cast<size_t>(rank), 1);
  row[0] = n;
  row[static_cast<size_t>(rank - 1)] = space;
  // Column k belongs to the dim that is k before the last, and the last column to none.
  const auto column = [&](int64_t k) { return reshape(slice(wide, {2}, {k}, {k + 1}), row); };
  Tensor sum = column(space);
  for (int k = 0; k < space; ++k) {
    const int axis = space - k;
    const int64_t size = output_shape[static_cast<size_t>(axis + 1)];
    sum = add(sum, multiply(column(k), places(one, size, axis, rank, align_corners)));
  }
  return gradients::narrowed(sum, input.dtype());
}

}  // namespace shard::external

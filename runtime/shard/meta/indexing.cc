// infer_meta of the ops of indexing.yaml. Lookups of whole slices along one dim are in slicing.cc.
#include <algorithm>
#include <limits>

#include "shard/meta/check.h"
#include "shard/meta/infer_meta.h"
#include "shard/meta/window.h"

namespace shard::meta {
namespace {

/// x and index have the same dims but for the axis, which is returned.
int check_along_axis(const OpContext& ctx, const Meta& x, const Meta& index, int axis) {
  check_index(ctx, "indices", index);
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  Dims expected = x.dims;
  if (x.dims.rank() > 0 && index.dims.rank() == x.dims.rank()) {
    // On a rank the axis alone may differ from the dim of the whole tensor.
    expected[along] = index.dims[along];
    if (expected == index.dims) return along;
  }
  fail(
      ErrorCode::shape_mismatch,
      "[{}] arr is {} and indices is {}, but both must have the same dims, at least one, other than axis {}; expand or "
      "slice one of them",
      ctx.op, to_string(x), to_string(index), axis);
}

/// The shape of the slices of x that the rows of index name, after the leading dims of index.
Dims slices_at(const OpContext& ctx, const Meta& x, const Meta& index) {
  check_index(ctx, "index", index);
  const int rank = index.dims.rank();
  const int64_t chosen = rank == 0 ? -1 : index.dims[rank - 1];
  if (chosen < 0 || chosen > x.dims.rank()) {
    fail(
        ErrorCode::shape_mismatch,
        "[{}] index is {} and x is {}, but the last dim of index must be the number of leading dims of x to choose in, "
        "at most {}",
        ctx.op, to_string(index), to_string(x), x.dims.rank());
  }
  const int64_t count = rank - 1 + x.dims.rank() - chosen;
  if (count > kMaxRank) {
    fail(ErrorCode::out_of_range, "[{}] index is {} and x is {}, so the slices have {} dims; a tensor has at most {}",
         ctx.op, to_string(index), to_string(x), count, kMaxRank);
  }
  Dims dims;
  for (int d = 0; d + 1 < rank; ++d) dims.push_back(index.dims[d]);
  for (auto d = static_cast<int>(chosen); d < x.dims.rank(); ++d) dims.push_back(x.dims[d]);
  return dims;
}

void check_no_bool(const OpContext& ctx, std::string_view name, const Meta& x) {
  if (x.dtype != DType::boolean) return;
  fail(ErrorCode::dtype_mismatch, "[{}] {} is {}, but must have numbers; cast it", ctx.op, name, to_string(x));
}

/// Throws unless `values` has `count` numbers from `least` to kMost.
void check_numbers(const OpContext& ctx, const char* name, const IntArray& values, size_t count, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 30;  // so that sums and products of two do not overflow
  const auto fits = [&](int64_t v) { return v >= least && v <= kMost; };
  if (values.size() == count && std::all_of(values.begin(), values.end(), fits)) return;
  fail(ErrorCode::invalid_argument, "[{}] {} is {}, but must have {} numbers from {} to {}", ctx.op, name,
       to_string(values), count, least, kMost);
}

/// The number of blocks of unfold and fold in an image of height and width `size`.
int64_t block_count(const OpContext& ctx, const IntArray& size, const IntArray& kernel_sizes, const IntArray& strides,
                    const IntArray& paddings, const IntArray& dilations) {
  check_numbers(ctx, "kernel_sizes", kernel_sizes, 2, 1);
  check_numbers(ctx, "strides", strides, 2, 1);
  check_numbers(ctx, "paddings", paddings, 4, 0);
  check_numbers(ctx, "dilations", dilations, 2, 1);
  const Windows windows = unfold_windows(size[0], size[1], kernel_sizes, strides, paddings, dilations);
  const int64_t count = windows[1].out * windows[2].out;
  if (count > 0) return count;
  fail(ErrorCode::shape_mismatch,
       "[{}] a kernel of {} with dilations {} does not fit into an image of {} with paddings {}", ctx.op,
       to_string(kernel_sizes), to_string(dilations), to_string(size), to_string(paddings));
}

}  // namespace

void RollInferMeta(const OpContext& ctx, const Meta& x, const IntArray& shifts, const IntArray& axis, Meta& out) {
  const bool fits = axis.empty() ? shifts.size() == 1 : shifts.size() == axis.size();
  if (!fits) {
    fail(ErrorCode::invalid_argument,
         "[{}] shifts is {} and axis is {}, but must have equally many numbers, or one shift and no axis", ctx.op,
         to_string(shifts), to_string(axis));
  }
  for (const int64_t a : axis) normalize_axis(ctx.op, "an axis", a, x.dims.rank());
  if (x.dims.rank() == 0 && !axis.empty())
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, which has no dim to roll", ctx.op, to_string(x));
  out = x;
}

void PadInferMeta(const OpContext& ctx, const Meta& x, const IntArray& paddings, Meta& out) {
  check_numbers(ctx, "paddings", paddings, 2 * static_cast<size_t>(x.dims.rank()), 0);
  out = x;
  for (int d = 0; d < x.dims.rank(); ++d) {
    const int64_t before = paddings[2 * static_cast<size_t>(d)], after = paddings[2 * static_cast<size_t>(d) + 1];
    int64_t& size = out.dims[d];
    if (__builtin_add_overflow(size, before, &size) || __builtin_add_overflow(size, after, &size)) {
      fail(ErrorCode::out_of_range, "[{}] x is {}, which is too large with paddings {}", ctx.op, to_string(x),
           to_string(paddings));
    }
  }
  check_size(ctx, out.dims, out.dtype);
}

void ViewDTypeInferMeta(const OpContext& ctx, const Meta& input, DType dtype, Meta& out) {
  out = {input.dims, dtype};
  if (dtype == input.dtype) return;
  if (dtype == DType::boolean || input.dtype == DType::boolean) {
    fail(ErrorCode::dtype_mismatch, "[{}] input is {} and dtype {}, but bool is not viewed as another dtype; use cast",
         ctx.op, to_string(input), to_string(dtype));
  }
  const auto from = static_cast<int64_t>(size_of(input.dtype)), to = static_cast<int64_t>(size_of(dtype));
  if (from == to) return;
  const int last = input.dims.rank() - 1;
  if (last < 0 || input.dims[last] * from % to != 0) {
    fail(ErrorCode::shape_mismatch,
         "[{}] input is {}, whose last dim must have as many bytes as some elements of {}, which have {}", ctx.op,
         to_string(input), to_string(dtype), to);
  }
  out.dims[last] = input.dims[last] * from / to;
}

void GatherNdInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, Meta& out) {
  out = {slices_at(ctx, x, index), x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void ScatterNdAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& updates, Meta& out) {
  check_no_bool(ctx, "x", x);
  check_same_dtype(ctx, "x", x, "updates", updates);
  const Dims expected = slices_at(ctx, x, index);
  out = x;
  if (updates.dims == expected) return;
  fail(ErrorCode::shape_mismatch, "[{}] x is {} and index is {}, so updates must be {}, but is {}", ctx.op,
       to_string(x), to_string(index), to_string(expected), to_string(updates));
}

void IndexAddInferMeta(const OpContext& ctx, const Meta& x, const Meta& index, const Meta& add_value, int axis,
                       Meta& out) {
  check_no_bool(ctx, "x", x);
  check_same_dtype(ctx, "x", x, "add_value", add_value);
  check_index(ctx, "index", index);
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims.rank());
  out = x;
  if (x.dims.rank() > 0 && index.dims.rank() == 1) {
    Dims expected = x.dims;
    expected[along] = index.dims[0];
    if (add_value.dims == expected) return;
  }
  fail(ErrorCode::shape_mismatch,
       "[{}] x is {}, index is {} and add_value is {}, but index must be [n], and add_value must have the dims of x, "
       "with "
       "n in place of axis {}",
       ctx.op, to_string(x), to_string(index), to_string(add_value), axis);
}

void TakeAlongAxisInferMeta(const OpContext& ctx, const Meta& arr, const Meta& indices, int axis, Meta& out) {
  check_along_axis(ctx, arr, indices, axis);
  out = {indices.dims, arr.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void PutAlongAxisInferMeta(const OpContext& ctx, const Meta& arr, const Meta& indices, const Meta& values, int axis,
                           const std::string& reduce, bool, Meta& out) {
  check_no_bool(ctx, "arr", arr);
  check_same_dtype(ctx, "arr", arr, "values", values);
  check_along_axis(ctx, arr, indices, axis);
  if (values.dims != indices.dims) {
    fail(ErrorCode::shape_mismatch,
         "[{}] indices is {} and values is {}, but their shapes must be equal; expand values", ctx.op,
         to_string(indices), to_string(values));
  }
  const std::string_view names[] = {"assign", "add", "multiply", "mul", "mean", "amax", "amin"};
  if (std::find(std::begin(names), std::end(names), reduce) == std::end(names)) {
    fail(ErrorCode::invalid_argument,
         "[{}] reduce is '{}', but must be assign, add, multiply (or mul), mean, amax or amin", ctx.op, reduce);
  }
  out = arr;
}

void TriangleIndicesInferMeta(const OpContext& ctx, int rows, int columns, int offset, bool lower, DType dtype,
                              Meta& out) {
  if (rows < 0 || columns < 0) {
    fail(ErrorCode::invalid_argument, "[{}] the matrix is {} by {}, but its sizes must be 0 or more", ctx.op, rows,
         columns);
  }
  if (dtype != DType::int32 && dtype != DType::int64) {
    fail(ErrorCode::dtype_mismatch, "[{}] dtype is {}, but must be int32 or int64", ctx.op, to_string(dtype));
  }
  int64_t kept = 0;  // by the lower triangle
  for (int64_t r = 0; r < rows; ++r) kept += std::clamp<int64_t>(r + offset + (lower ? 1 : 0), 0, columns);
  out = {Dims{2, lower ? kept : int64_t{rows} * columns - kept}, dtype};
  check_size(ctx, out.dims, dtype);
}

void UnfoldInferMeta(const OpContext& ctx, const Meta& x, const IntArray& kernel_sizes, const IntArray& strides,
                     const IntArray& paddings, const IntArray& dilations, Meta& out) {
  check_no_bool(ctx, "x", x);
  if (x.dims.rank() != 4)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be [n, c, h, w]", ctx.op, to_string(x));
  const int64_t count = block_count(ctx, {x.dims[2], x.dims[3]}, kernel_sizes, strides, paddings, dilations);
  out = {Dims{x.dims[0], x.dims[1] * kernel_sizes[0] * kernel_sizes[1], count}, x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void FoldInferMeta(const OpContext& ctx, const Meta& x, const IntArray& output_sizes, const IntArray& kernel_sizes,
                   const IntArray& strides, const IntArray& paddings, const IntArray& dilations, Meta& out) {
  check_no_bool(ctx, "x", x);
  check_numbers(ctx, "output_sizes", output_sizes, 2, 0);
  const int64_t count = block_count(ctx, output_sizes, kernel_sizes, strides, paddings, dilations);
  const int64_t size = kernel_sizes[0] * kernel_sizes[1];
  if (x.dims.rank() != 3 || x.dims[1] % size != 0 || x.dims[2] != count) {
    fail(ErrorCode::shape_mismatch,
         "[{}] x is {}, but must be [n, c * {}, {}], for a kernel of {} and {} blocks in an image of {}", ctx.op,
         to_string(x), size, count, to_string(kernel_sizes), count, to_string(output_sizes));
  }
  out = {Dims{x.dims[0], x.dims[1] / size, output_sizes[0], output_sizes[1]}, x.dtype};
  check_size(ctx, out.dims, out.dtype);
}

void FillDiagonalInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  const Dims& dims = global_dims(ctx, 0, x);
  const bool equal = std::all_of(dims.begin(), dims.end(), [&](int64_t size) { return size == dims[0]; });
  if (dims.rank() < 2 || (dims.rank() > 2 && !equal)) {
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must be a matrix, or have more dims that are all equal", ctx.op,
         to_string(x));
  }
  out = x;
}

void ShapeInferMeta(const OpContext& ctx, const Meta& x, Meta& out) {
  const Dims& dims = global_dims(ctx, 0, x);
  for (const int64_t size : dims) {
    if (size <= std::numeric_limits<int32_t>::max()) continue;
    fail(ErrorCode::out_of_range, "[{}] input is {}, whose dim {} is too large for int32", ctx.op, to_string(x), size);
  }
  out = {Dims{x.dims.rank()}, DType::int32};
}

void ShardIndexInferMeta(const OpContext& ctx, const Meta& x, int index_num, int nshards, int shard_id, int,
                         Meta& out) {
  check_index(ctx, "input", x);
  if (index_num < 1 || nshards < 1 || shard_id < 0 || shard_id >= nshards) {
    fail(ErrorCode::invalid_argument,
         "[{}] index_num is {}, nshards {} and shard_id {}, but the first two must be positive, and shard_id from 0 to "
         "before nshards",
         ctx.op, index_num, nshards, shard_id);
  }
  out = x;
}

}  // namespace shard::meta

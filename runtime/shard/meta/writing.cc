// infer_meta of the ops of writing.yaml, and which elements they write.
#include "shard/meta/writing.h"

#include <algorithm>
#include <limits>

#include "shard/meta/infer_meta.h"

namespace shard::meta {
namespace {

/// The dims that a list of axes names, each once.
std::vector<bool> named(std::string_view op, const char* list, const IntArray& axes, int rank) {
  std::vector<bool> found(static_cast<size_t>(rank), false);
  for (const int64_t a : axes) {
    if (rank == 0) fail(ErrorCode::shape_mismatch, "[{}] x has no dims, but {} is {}", op, list, to_string(axes));
    const auto d = static_cast<size_t>(normalize_axis(op, "an axis of " + std::string(list), a, rank));
    if (found[d])
      fail(ErrorCode::invalid_argument, "[{}] {} is {}, which has dim {} twice", op, list, to_string(axes), d);
    found[d] = true;
  }
  return found;
}

std::string shape_text(const WrittenSlice& slice) {
  IntArray sizes;
  for (const int d : slice.dims) sizes.push_back(d == kNoDim ? 1 : slice.ranges[static_cast<size_t>(d)].count);
  return to_string(sizes);
}

}  // namespace

WrittenSlice written_slice(std::string_view op, const Dims& x, const IntArray& starts, const IntArray& ends,
                           const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes,
                           const IntArray& none_axes) {
  const size_t count = axes.size();
  if (starts.size() != count || ends.size() != count || steps.size() != count) {
    fail(ErrorCode::invalid_argument, "[{}] axes {}, starts {}, ends {} and steps {} must have equally many values", op,
         to_string(axes), to_string(starts), to_string(ends), to_string(steps));
  }
  const int rank = x.rank();
  named(op, "axes", axes, rank);
  const std::vector<bool> dropped = named(op, "decrease_axes", decrease_axes, rank);
  WrittenSlice slice;
  for (const int64_t size : x) slice.ranges.push_back({0, size, 1});
  for (size_t i = 0; i < count; ++i) {
    if (steps[i] == 0) fail(ErrorCode::invalid_argument, "[{}] steps {} has a 0", op, to_string(steps));
    const int d = normalize_axis(op, "an axis of axes", axes[i], rank);
    SliceRange& range = slice.ranges[static_cast<size_t>(d)];
    range = slice_range(x[d], starts[i], ends[i], steps[i]);
    if (range.count <= 1) range.step = 1;  // which may be any number, of which products would overflow
  }
  for (const int64_t a : none_axes) {
    if (a >= 0 && a <= rank) continue;
    fail(ErrorCode::out_of_range, "[{}] none_axes is {}, but its numbers must be from 0 to {}, the number of dims of x",
         op, to_string(none_axes), rank);
  }
  for (int d = 0; d <= rank; ++d) {
    slice.dims.insert(slice.dims.end(), static_cast<size_t>(std::count(none_axes.begin(), none_axes.end(), d)), kNoDim);
    if (d == rank) break;
    const SliceRange& range = slice.ranges[static_cast<size_t>(d)];
    if (!dropped[static_cast<size_t>(d)]) {
      slice.dims.push_back(d);
    } else if (range.count > 1) {
      fail(ErrorCode::shape_mismatch, "[{}] decrease_axes is {}, but the slice of dim {} of x {} has {} elements", op,
           to_string(decrease_axes), d, to_string(x), range.count);
    }
  }
  return slice;
}

std::vector<int> dims_of_values(std::string_view op, const WrittenSlice& slice, const Dims& values) {
  std::vector<int> found;
  bool fits = true;
  const int more = values.rank() - static_cast<int>(slice.dims.size());
  for (int v = 0; v < values.rank(); ++v) {
    const int d = v < more ? kNoDim : slice.dims[static_cast<size_t>(v - more)];
    const int64_t size = d == kNoDim ? 1 : slice.ranges[static_cast<size_t>(d)].count;
    fits = fits && (values[v] == size || values[v] == 1);
    found.push_back(values[v] == size ? d : kNoDim);
  }
  if (fits) return found;
  fail(ErrorCode::shape_mismatch, "[{}] the slice has shape {}, to which values of shape {} do not broadcast", op,
       shape_text(slice), to_string(values));
}

Selection selection(std::string_view op, const Dims& x, std::span<const Meta> indices) {
  if (indices.empty()) fail(ErrorCode::invalid_argument, "[{}] indices is empty, but must have a tensor", op);
  Selection found;
  for (size_t i = 0; i < indices.size(); ++i) {
    const Meta& index = indices[i];
    const bool mask = index.dtype == DType::boolean;
    if (!mask && index.dtype != DType::int32 && index.dtype != DType::int64) {
      fail(ErrorCode::dtype_mismatch, "[{}] indices[{}] is {}, but must be int32, int64 or bool; cast it", op, i,
           to_string(index));
    }
    const int count = mask ? index.dims.rank() : 1;
    bool fits = count > 0 && found.chosen + count <= x.rank();
    for (int d = 0; fits && mask && d < count; ++d) fits = index.dims[d] == x[found.chosen + d];
    if (!fits) {
      fail(ErrorCode::shape_mismatch,
           "[{}] indices[{}] is {}, but x is {} and the indices before select in its first {} dims; {}", op, i,
           to_string(index), to_string(x), found.chosen,
           mask ? "a mask must have the sizes of the next dims" : "there is no dim left to select in");
    }
    found.chosen += count;
    found.rank = std::max(found.rank, mask ? 1 : index.dims.rank());
    found.masks = found.masks || mask;
  }
  if (found.rank + x.rank() - found.chosen > kMaxRank) {
    fail(ErrorCode::out_of_range,
         "[{}] x is {} and the shape of indices has {} dims, so {} dims are written; a tensor "
         "has at most {}",
         op, to_string(x), found.rank, found.rank + x.rank() - found.chosen, kMaxRank);
  }
  return found;
}

Dims common_shape(std::string_view op, std::span<const Dims> indices) {
  Dims shape;
  for (const Dims& index : indices) {
    while (shape.rank() < index.rank()) shape.insert(0, 1);
    for (int d = 0; d < index.rank(); ++d) {
      int64_t& size = shape[shape.rank() - index.rank() + d];
      if (size == 1) size = index[d];
      if (index[d] == size || index[d] == 1) continue;
      fail_check(ErrorCode::shape_mismatch, "[{}] indices have the shapes {} and before it {}, which do not broadcast",
                 op, to_string(index), to_string(shape));
    }
  }
  return shape;
}

void check_broadcast(std::string_view op, const Dims& value, const Dims& places) {
  const int lead = places.rank() - value.rank();
  bool fits = lead >= 0;
  for (int d = 0; fits && d < value.rank(); ++d) fits = value[d] == 1 || value[d] == places[lead + d];
  if (fits) return;
  fail_check(ErrorCode::shape_mismatch,
             "[{}] the places that indices select have the shape {}, to which value of shape "
             "{} does not broadcast",
             op, to_string(places), to_string(value));
}

void IndexPutInferMeta(const OpContext& ctx, const Meta& x, std::span<const Meta> indices, const Meta& value,
                       bool accumulate, Meta& out) {
  check_same_dtype(ctx, "x", x, "value", value);
  if (accumulate && x.dtype == DType::boolean)
    fail(ErrorCode::dtype_mismatch, "[{}] x is {}, but accumulate needs numbers; cast it", ctx.op, to_string(x));
  const Dims &dims = global_dims(ctx, 0, x), &value_dims = global_dims(ctx, 1 + indices.size(), value);
  std::vector<Meta> whole;
  std::vector<Dims> shapes;
  for (const Meta& index : indices) {
    shapes.push_back(global_dims(ctx, 1 + whole.size(), index));
    whole.push_back({shapes.back(), index.dtype});
  }
  const Selection selected = selection(ctx.op, dims, whole);
  out = x;
  if (selected.masks) return;  // the kernel knows how many elements they have
  Dims places = common_shape(ctx.op, shapes);
  for (int d = selected.chosen; d < dims.rank(); ++d) places.push_back(dims[d]);
  check_broadcast(ctx.op, value_dims, places);
}

void SetValueInferMeta(const OpContext& ctx, const Meta& x, const IntArray& starts, const IntArray& ends,
                       const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes,
                       const IntArray& none_axes, const IntArray& shape, const std::vector<Scalar>& values, Meta& out) {
  const bool valid = shape.size() <= static_cast<size_t>(kMaxRank) &&
                     std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size >= 0; });
  if (valid) check_size(ctx, shape, x.dtype);
  if (!valid || Dims(shape).numel() != static_cast<int64_t>(values.size())) {
    fail(ErrorCode::invalid_argument, "[{}] values has {} numbers, which is not what a tensor of shape {} has", ctx.op,
         values.size(), to_string(shape));
  }
  const WrittenSlice slice =
      written_slice(ctx.op, global_dims(ctx, 0, x), starts, ends, steps, axes, decrease_axes, none_axes);
  dims_of_values(ctx.op, slice, Dims(shape));
  out = x;
}

void SetValueWithTensorInferMeta(const OpContext& ctx, const Meta& x, const Meta& values, const IntArray& starts,
                                 const IntArray& ends, const IntArray& steps, const IntArray& axes,
                                 const IntArray& decrease_axes, const IntArray& none_axes, Meta& out) {
  check_same_dtype(ctx, "x", x, "values", values);
  const WrittenSlice slice =
      written_slice(ctx.op, global_dims(ctx, 0, x), starts, ends, steps, axes, decrease_axes, none_axes);
  dims_of_values(ctx.op, slice, global_dims(ctx, 1, values));
  out = x;
}

void FillDiagonalTensorInferMeta(const OpContext& ctx, const Meta& x, const Meta& y, int64_t offset, int dim1, int dim2,
                                 Meta& out) {
  check_same_dtype(ctx, "x", x, "y", y);
  const Dims &dims = global_dims(ctx, 0, x), &diagonals = global_dims(ctx, 1, y);
  if (dims.rank() < 2)
    fail(ErrorCode::shape_mismatch, "[{}] x is {}, but must have two dims or more", ctx.op, to_string(x));
  const int rows = normalize_axis(ctx.op, "dim1", dim1, dims.rank()),
            columns = normalize_axis(ctx.op, "dim2", dim2, dims.rank());
  if (rows == columns) {
    fail(ErrorCode::invalid_argument, "[{}] dim1 is {} and dim2 is {}, which is the same dim; name two dims", ctx.op,
         dim1, dim2);
  }
  if (offset < std::numeric_limits<int>::lowest() || offset > std::numeric_limits<int>::max())
    fail(ErrorCode::out_of_range, "[{}] offset is {}, but must fit into 32 bits, as that of diagonal", ctx.op, offset);
  Dims expected;
  for (int d = 0; d < dims.rank(); ++d) {
    if (d != rows && d != columns) expected.push_back(dims[d]);
  }
  expected.push_back(diagonal_range(dims[rows], dims[columns], offset).length);
  out = x;
  if (diagonals == expected) return;
  fail(ErrorCode::shape_mismatch,
       "[{}] x is {}, whose diagonals of dims {} and {} with offset {} have the shape {}, but y is {}", ctx.op,
       to_string(Meta{dims, x.dtype}), rows, columns, offset, to_string(expected), to_string(Meta{diagonals, y.dtype}));
}

}  // namespace shard::meta

// Which elements the ops of writing.yaml write, for their infer_meta, rules, kernels and gradients.
#pragma once

#include <string_view>
#include <vector>

#include "shard/core/slice_range.h"
#include "shard/meta/check.h"

namespace shard::meta {

/// Stands for a dim of values that no dim of x belongs to: it has size 1, or is repeated.
inline constexpr int kNoDim = -1;

/// The slice of a tensor that set_value writes.
struct WrittenSlice {
  std::vector<SliceRange> ranges;  // of each dim of x
  std::vector<int> dims;           // of the slice as values see it: which dim of x, or kNoDim for a new one
};

/// For x of shape `x`. Throws invalid_argument or out_of_range for attributes that do not fit.
WrittenSlice written_slice(std::string_view op, const Dims& x, const IntArray& starts, const IntArray& ends,
                           const IntArray& steps, const IntArray& axes, const IntArray& decrease_axes,
                           const IntArray& none_axes);
/// For each dim of values the dim of x that it is written along; kNoDim where it is repeated. Throws shape_mismatch
/// where values do not broadcast to the slice.
std::vector<int> dims_of_values(std::string_view op, const WrittenSlice& slice, const Dims& values);

/// What the indices of index_put select.
struct Selection {
  int chosen = 0;      // the leading dims of x in which they select
  int rank = 0;        // the dims of their common shape
  bool masks = false;  // whether a size of that shape depends on data
};

/// For x of shape `x`. Throws dtype_mismatch, shape_mismatch, or invalid_argument for no indices.
Selection selection(std::string_view op, const Dims& x, std::span<const Meta> indices);
/// The common shape of indices, of which those that are masks have one dim. Throws shape_mismatch as a kernel does.
Dims common_shape(std::string_view op, std::span<const Dims> indices);
/// Throws shape_mismatch, as a kernel does, unless `value` broadcasts to `places`, the shape of what is selected.
void check_broadcast(std::string_view op, const Dims& value, const Dims& places);

/// A diagonal of a matrix: `length` elements, the first at [row, column].
struct DiagonalRange {
  int64_t row = 0, column = 0, length = 0;
};
inline DiagonalRange diagonal_range(int64_t rows, int64_t columns, int64_t offset) {
  const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
  return {row, column, std::max<int64_t>(std::min(rows - row, columns - column), 0)};
}

}  // namespace shard::meta

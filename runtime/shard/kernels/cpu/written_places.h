// Where the ops that write slices and diagonals write: the places in a rank's shard, and those of the values, for all backends.
#pragma once

#include <algorithm>

#include "shard/core/op_context.h"
#include "shard/meta/writing.h"

namespace shard::cpu {

/// Elements of two tensors that belong together: the offsets of the first, and for each dim from the outermost inwards the
/// number of elements and their distances, which may be negative or 0.
struct PlacePairs {
  int64_t to = 0, from = 0;
  bool is_empty = false;
  int rank = 0;
  int64_t sizes[kMaxRank], to_steps[kMaxRank], from_steps[kMaxRank];

  void add(int64_t size, int64_t to_step, int64_t from_step) {
    is_empty = is_empty || size == 0;
    sizes[rank] = size;
    to_steps[rank] = to_step;
    from_steps[rank++] = from_step;
  }
};

/// The elements of a range within [begin, begin + size): from `first` of them to before `end`.
struct Within {
  int64_t first, end;

  Within(const SliceRange& range, int64_t begin, int64_t size) : first(0), end(0) {
    if (range.count == 0 || size == 0) return;
    const auto up = [](int64_t a, int64_t b) { return a <= 0 ? 0 : (a - 1) / b + 1; };
    if (range.step > 0) {
      first = up(begin - range.first, range.step);
      end = std::min(range.count, up(begin + size - range.first, range.step));
    } else {
      first = up(range.first - (begin + size - 1), -range.step);
      end = std::min(range.count, range.first < begin ? 0 : (range.first - begin) / -range.step + 1);
    }
    end = std::max(first, end);
  }
};

/// A shard of a tensor: its shape, the distances of its elements, and its box.
struct PlacedShard {
  const Dims &dims, &steps;
  const Box& box;
};

/// Those of a slice of x and of the values that are written there.
inline PlacePairs slice_places(const OpContext& ctx, const meta::WrittenSlice& slice, const PlacedShard& x,
                               const PlacedShard& values) {
  const std::vector<int> along = meta::dims_of_values(ctx.op, slice, values.box.global);
  PlacePairs pairs;
  for (int d = 0; d < x.dims.rank(); ++d) {
    const SliceRange& range = slice.ranges[static_cast<size_t>(d)];
    const Within here(range, x.box.begin[d], x.dims[d]);
    const auto v = std::find(along.begin(), along.end(), d);
    int64_t value_step = 0;
    if (v != along.end()) {
      const auto dim = static_cast<int>(v - along.begin());
      value_step = values.steps[dim];
      pairs.from += (here.first - values.box.begin[dim]) * value_step;
    }
    pairs.to += (range.first + here.first * range.step - x.box.begin[d]) * x.steps[d];
    pairs.add(here.end - here.first, range.step * x.steps[d], value_step);
  }
  return pairs;
}

/// Those of a diagonal of x. y has the dims of x but for the two, sharded alike, and then the diagonal, which is whole.
inline PlacePairs diagonal_places(const OpContext& ctx, int64_t offset, int dim1, int dim2, const PlacedShard& x,
                                  const Dims& y_steps) {
  const int rank = x.dims.rank(), rows = normalize_axis(ctx.op, "dim1", dim1, rank),
            columns = normalize_axis(ctx.op, "dim2", dim2, rank);
  const meta::DiagonalRange diagonal = meta::diagonal_range(x.box.global[rows], x.box.global[columns], offset);
  const int64_t row = x.box.begin[rows] - diagonal.row, column = x.box.begin[columns] - diagonal.column;
  const int64_t first = std::max<int64_t>({row, column, 0});
  const int64_t end = std::min({row + x.dims[rows], column + x.dims[columns], diagonal.length});
  PlacePairs pairs;
  pairs.to = (first - row) * x.steps[rows] + (first - column) * x.steps[columns];
  pairs.from = first;
  for (int d = 0, v = 0; d < rank; ++d) {
    if (d != rows && d != columns) pairs.add(x.dims[d], x.steps[d], y_steps[v++]);
  }
  pairs.add(std::max<int64_t>(end - first, 0), x.steps[rows] + x.steps[columns], 1);
  return pairs;
}

}  // namespace shard::cpu

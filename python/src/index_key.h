// What stands between the brackets of x[...], as C++ values.
#pragma once

#include <optional>
#include <vector>

#include "services.h"

namespace shard::python {

/// One index of a key.
struct Item {
  enum class Kind : uint8_t { position, slice, new_axis, ellipsis, positions, mask, truth };

  Kind kind;
  int64_t position = 0;
  Slice slice{};
  Tensor tensor{};  // of positions (int32 or int64) or a mask
  bool truth = false;
  std::optional<std::pair<int64_t, int64_t>> range{};  // of positions that came from a list or an array

  /// Whether NumPy calls it advanced beside another one that is: all but slices, None and the ellipsis.
  bool selects() const { return kind != Kind::slice && kind != Kind::new_axis && kind != Kind::ellipsis; }
  bool whole() const { return kind == Kind::slice && !slice.start && !slice.stop && slice.step == 1; }
  /// The dims of the tensor that it indexes.
  int dims() const;
};

/// The items of a key for a tensor, one for each of its dims but for masks: the ellipsis is replaced by whole slices.
struct Key {
  std::vector<Item> items;
  /// True where an item is a tensor, a mask or a bool.
  bool advanced = false;
  /// True where the items that select do not stand side by side, so that NumPy puts their dims first.
  bool separated = false;
};

/// Reads a key for x. Lists and arrays become tensors beside x. Throws out_of_range for too many indices, for positions of ints, lists
/// and arrays outside their dim, and for masks of other sizes; dtype_mismatch for tensors of floats; TypeError for other objects.
Key key_of(nb::handle key, const Tensor& x);

/// The range of a dim that a slice names, as slice and strided_slice take it.
struct SliceRange {
  int64_t start, stop, step;
  int64_t count() const;
};
SliceRange range_of(const Slice& slice, int64_t size);

}  // namespace shard::python

// Computes which elements of a dim a slice selects, for infer_meta functions and kernels.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shard {

/// `count` elements, the first at `first`, each `step` after the previous one; step may be
/// negative.
struct SliceRange {
  int64_t first = 0;
  int64_t count = 0;
  int64_t step = 1;
};

/// From `start` to before `end` by `step`, which is not 0. Negative positions count from the end of
/// the dim, and positions outside it are clamped. With a negative step an end of -1 is the position
/// before the first element.
inline SliceRange slice_range(int64_t size, int64_t start, int64_t end, int64_t step = 1) {
  const bool before_first = step < 0 && end == -1;
  if (start < 0) start += size;
  if (end < 0 && !before_first) end += size;
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  start = std::clamp(start, low, high);
  end = std::clamp(end, low, high);
  const int64_t distance = step > 0 ? end - start : start - end;
  if (distance <= 0) return {0, 0, step};
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return {start, static_cast<int64_t>((static_cast<uint64_t>(distance) - 1) / stride) + 1, step};
}

}  // namespace shard

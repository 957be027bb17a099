#include "reshard/box_copy.h"

#include <cstring>

namespace shard {
namespace {

int64_t offset_of(const BoxView& view) {
  int64_t offset = 0;
  for (int d = 0; d < view.dims.rank(); ++d) offset = offset * view.dims[d] + view.begin[d];
  return offset;
}

}  // namespace

void copy_box(const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  if (extent.numel() == 0) return;
  // Trailing dims that are whole on both sides are copied in one go.
  int outer = extent.rank();
  while (outer > 0 && extent[outer - 1] == to.dims[outer - 1] && extent[outer - 1] == from.dims[outer - 1]) --outer;
  const int last = outer - 1;
  const int64_t inner = extent.numel(std::max(outer, 0), extent.rank());
  const size_t run = static_cast<size_t>(outer == 0 ? inner : extent[last] * inner) * element;
  const int64_t count = outer == 0 ? 1 : extent.numel(0, last);
  const int64_t to_base = offset_of(to);
  const int64_t from_base = offset_of(from);
  Dims index = Dims::filled(std::max(last, 0), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t to_offset = 0;
    int64_t from_offset = 0;
    for (int d = 0; d < extent.rank(); ++d) {
      const int64_t step = d < last ? index[d] : 0;
      to_offset = to_offset * to.dims[d] + step;
      from_offset = from_offset * from.dims[d] + step;
    }
    std::memcpy(to.data + static_cast<size_t>(to_base + to_offset) * element,
                from.data + static_cast<size_t>(from_base + from_offset) * element, run);
    for (int d = last - 1; d >= 0; --d) {
      if (++index[d] < extent[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace shard

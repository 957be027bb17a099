// A tensor viewed as [outer, size, inner] around one axis, for kernels that scan along it.
#pragma once

#include "shard/core/dims.h"
#include "shard/core/op_context.h"

namespace shard::cpu {

struct AxisView {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
};

/// The index in the whole tensor of element `i` of a shard, both counted in row-major order over the dims from `first` on.
inline int64_t place_in_whole(const Dims& local, const Box& box, int64_t i, int first = 0) {
  int64_t place = 0, stride = 1;
  for (int d = local.rank() - 1; d >= first; --d) {
    place += (box.begin[d] + i % local[d]) * stride;
    i /= local[d];
    stride *= box.global[d];
  }
  return place;
}

/// The view around `axis`, counted from 0; a 0-d tensor is [1, 1, 1].
inline AxisView axis_view(const Dims& dims, int axis) {
  if (dims.rank() == 0) return {};
  return {dims.numel(0, axis), dims[axis], dims.numel(axis + 1, dims.rank())};
}

}  // namespace shard::cpu

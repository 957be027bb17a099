// A tensor viewed as [outer, size, inner] around one axis, for kernels that scan along it.
#pragma once

#include "shard/core/dims.h"

namespace shard::cpu {

struct AxisView {
  int64_t outer = 1;
  int64_t size = 1;
  int64_t inner = 1;
};

/// The view around `axis`, counted from 0; a 0-d tensor is [1, 1, 1].
inline AxisView axis_view(const Dims& dims, int axis) {
  if (dims.rank() == 0) return {};
  return {dims.numel(0, axis), dims[axis], dims.numel(axis + 1, dims.rank())};
}

}  // namespace shard::cpu

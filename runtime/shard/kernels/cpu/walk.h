// Traversals of parts of tensors: strides, and two tensors side by side.
#pragma once

#include <algorithm>
#include <cstring>

#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/reduce_plan.h"

namespace shard::cpu {

/// Those of a contiguous tensor.
inline Dims strides_of(const Dims& dims) {
  Dims strides = dims;
  int64_t product = 1;
  for (int i = dims.rank() - 1; i >= 0; --i) {
    strides[i] = product;
    product *= dims[i];
  }
  return strides;
}

/// Merges neighbouring dims that are contiguous in memory.
inline Walk merged(const Walk& walk) {
  Walk result;
  for (int i = 0; i < walk.rank; ++i) {
    if (walk.size[i] == 1) continue;
    const int last = result.rank - 1;
    if (last >= 0 && result.stride[last] == walk.stride[i] * walk.size[i]) {
      result.size[last] *= walk.size[i];
      result.stride[last] = walk.stride[i];
    } else {
      result.add(walk.size[i], walk.stride[i]);
    }
  }
  return result;
}

/// Elements of two tensors that belong together.
struct PairWalk {
  Walk to, from;  // of equal sizes

  /// A dim inside of those before. It is joined with the last one where both tensors are contiguous.
  void add(int64_t n, int64_t to_step, int64_t from_step) {
    if (n == 1) return;
    const int last = to.rank - 1;
    if (last >= 0 && to.stride[last] == to_step * n && from.stride[last] == from_step * n) {
      for (Walk* walk : {&to, &from}) walk->size[last] *= n;
      to.stride[last] = to_step;
      from.stride[last] = from_step;
    } else {
      to.add(n, to_step);
      from.add(n, from_step);
    }
  }
};

/// Calls copy(to, from, n, to_step, from_step) for rows of elements: the offsets of the first, their number, and their
/// distances.
template <class Copy>
void for_each_row(const PairWalk& pair, const Copy& copy) {
  const int last = pair.to.rank - 1;
  const int64_t n = last < 0 ? 1 : pair.to.size[last];
  const int64_t to_step = last < 0 ? 1 : pair.to.stride[last], from_step = last < 0 ? 1 : pair.from.stride[last];
  PairWalk rows = pair;
  rows.to.rank = rows.from.rank = std::max(last, 0);
  parallel_for(n == 0 ? 0 : rows.to.count(), n, [&](int64_t first, int64_t end) {
    for (int64_t r = first; r < end; ++r) copy(rows.to.offset(r), rows.from.offset(r), n, to_step, from_step);
  });
}

/// Copies the elements of a pair of walks.
template <class T>
void copy_pairs(const T* from, const PairWalk& pair, T* to) {
  for_each_row(pair, [&](int64_t to_at, int64_t from_at, int64_t n, int64_t to_step, int64_t from_step) {
    if (to_step == 1 && from_step == 1) return static_cast<void>(std::copy_n(from + from_at, n, to + to_at));
    for (int64_t i = 0; i < n; ++i) to[to_at + i * to_step] = from[from_at + i * from_step];
  });
}

/// All elements of x, unless out is its buffer.
inline void copy_all(const DenseTensor& x, DenseTensor& out) {
  if (x.raw() == out.raw()) return;
  parallel_for(static_cast<int64_t>(x.meta().bytes()), 1, [&](int64_t first, int64_t last) {
    std::memcpy(out.data<char>() + first, x.data<char>() + first, static_cast<size_t>(last - first));
  });
}

}  // namespace shard::cpu

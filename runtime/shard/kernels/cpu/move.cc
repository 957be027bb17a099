// CPU kernels that rearrange the elements of one tensor: transpose, expand, tile, slices and their
// inverse, triangles. Concatenation and splitting are in concat.cc.
#include <algorithm>
#include <cstring>

#include "shard/core/slice_range.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/transpose.h"
#include "shard/kernels/cpu/walk.h"

namespace shard::cpu {
namespace {

/// Writes `out` row by row; its element i is x at the offset of element i of `walk`, plus `base`.
template <class T>
void copy_walk(const T* x, const Walk& walk, T* out) {
  const int64_t n = walk.rank == 0 ? 1 : walk.size[walk.rank - 1];
  const int64_t step = walk.rank == 0 ? 1 : walk.stride[walk.rank - 1];
  Walk rows = walk;
  rows.rank = std::max(walk.rank - 1, 0);
  parallel_for(n == 0 ? 0 : rows.count(), n, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* from = x + rows.offset(r);
      T* to = out + r * n;
      if (step == 1) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
      else if (step == 0) std::fill_n(to, n, *from);
      else
        for (int64_t i = 0; i < n; ++i) to[i] = from[i * step];
    }
  });
}

/// The dim, other than the last, whose elements are next to each other in x, if it and the last dim are long enough for
/// transpose_walk; else -1.
int contiguous_dim(const Walk& walk) {
  constexpr int64_t kLong = 8;
  for (int i = 0; i + 1 < walk.rank; ++i)
    if (walk.stride[i] == 1 && walk.size[i] >= kLong && walk.size[walk.rank - 1] >= kLong) return i;
  return -1;
}

/// The same as copy_walk where elements of dim `along` are next to each other in x, and those of the
/// last dim are not: a transposed matrix for each index of the other dims.
template <class T>
void transpose_walk(const T* x, const Walk& walk, int along, T* out) {
  const int last = walk.rank - 1;
  Walk from, to;  // the other dims, in x and in out
  int64_t step = 1, product = walk.size[last];
  for (int i = last - 1; i >= 0; --i) {
    if (i == along) {
      step = product;
    } else {
      from.add(walk.size[i], walk.stride[i]);
      to.add(walk.size[i], product);
    }
    product *= walk.size[i];
  }
  constexpr int64_t kStrip = 64;  // rows of a job
  const int64_t strips = (walk.size[last] + kStrip - 1) / kStrip;
  const Store store = store_of(static_cast<size_t>(walk.count()) * sizeof(T));
  parallel_for(from.count() * strips, 2 * kStrip * walk.size[along], [&](int64_t first, int64_t end) {
    for (int64_t job = first; job < end; ++job) {
      const int64_t matrix = job / strips, row = job % strips * kStrip;
      transpose_matrix(x + from.offset(matrix) + row * walk.stride[last], walk.stride[last],
                       out + to.offset(matrix) + row, step, std::min(kStrip, walk.size[last] - row), walk.size[along],
                       store);
    }
  });
}

/// Elements are copied as integers of their size.
void copy_elements(const DenseTensor& x, int64_t base, const Walk& walk, DenseTensor& out) {
  if (out.numel() == 0) return;
  const Walk plan = merged(walk);
  const int along = plan.rank > 0 && plan.stride[plan.rank - 1] > 1 ? contiguous_dim(plan) : -1;
  const auto copy = [&]<class T>(TypeTag<T>) {
    const T* from = x.data<T>() + base;
    if (along >= 0) transpose_walk(from, plan, along, out.data<T>());
    else copy_walk(from, plan, out.data<T>());
  };
  switch (size_of(x.dtype())) {
    case 1: return copy(TypeTag<uint8_t>());
    case 2: return copy(TypeTag<uint16_t>());
    case 4: return copy(TypeTag<uint32_t>());
    default: return copy(TypeTag<uint64_t>());
  }
}

/// x with its dims of size 1 repeated to the dims of out.
void broadcast_copy(const DenseTensor& x, DenseTensor& out) {
  const Dims strides = strides_of(x.dims());
  const int added = out.dims().rank() - x.dims().rank();
  Walk walk;
  for (int i = 0; i < out.dims().rank(); ++i) {
    const bool repeated = i < added || x.dims()[i - added] == 1;
    walk.add(out.dims()[i], repeated ? 0 : strides[i - added]);
  }
  copy_elements(x, 0, walk, out);
}

void transpose(const OpContext& ctx, const DenseTensor& x, const IntArray& perm, DenseTensor& out) {
  const Dims strides = strides_of(x.dims());
  Walk walk;
  for (int64_t p : perm) {
    const int axis = normalize_axis(ctx.op, "an axis of perm", p, x.dims().rank());
    walk.add(x.dims()[axis], strides[axis]);
  }
  copy_elements(x, 0, walk, out);
}

void expand(const OpContext&, const DenseTensor& x, const IntArray&, DenseTensor& out) { broadcast_copy(x, out); }

void expand_as(const OpContext&, const DenseTensor& x, const DenseTensor&, const IntArray&, DenseTensor& out) {
  broadcast_copy(x, out);
}

/// The elements of a slice, and the offset of the first.
struct SliceWalk {
  Walk walk;
  int64_t base = 0;
};

/// For a tensor of shape `dims`; without `steps`, all steps are 1.
SliceWalk slice_walk(const OpContext& ctx, const Dims& dims, const IntArray& axes, const IntArray& starts,
                     const IntArray& ends, const IntArray& steps) {
  Dims strides = strides_of(dims);
  Dims sizes = dims;
  SliceWalk slice;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int axis = normalize_axis(ctx.op, "an axis of axes", axes[i], dims.rank());
    const SliceRange range = slice_range(dims[axis], starts[i], ends[i], steps.empty() ? 1 : steps[i]);
    sizes[axis] = range.count;
    slice.base += range.first * strides[axis];
    strides[axis] *= range.step;
  }
  for (int i = 0; i < sizes.rank(); ++i) slice.walk.add(sizes[i], strides[i]);
  return slice;
}

void strided_slice(const OpContext& ctx, const DenseTensor& input, const IntArray& axes, const IntArray& starts,
                   const IntArray& ends, const IntArray& steps, DenseTensor& out) {
  const SliceWalk slice = slice_walk(ctx, input.dims(), axes, starts, ends, steps);
  copy_elements(input, slice.base, slice.walk, out);
}

void slice(const OpContext& ctx, const DenseTensor& input, const IntArray& axes, const IntArray& starts,
           const IntArray& ends, DenseTensor& out) {
  strided_slice(ctx, input, axes, starts, ends, {}, out);
}

/// Writes element i of `x` to `out` at the offset of element i of `walk`.
template <class T>
void spread_walk(const T* x, const Walk& walk, T* out) {
  const int64_t n = walk.rank == 0 ? 1 : walk.size[walk.rank - 1];
  const int64_t step = walk.rank == 0 ? 1 : walk.stride[walk.rank - 1];
  Walk rows = walk;
  rows.rank = std::max(walk.rank - 1, 0);
  parallel_for(rows.count(), n, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const T* from = x + r * n;
      T* to = out + rows.offset(r);
      if (step == 1) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
      else
        for (int64_t i = 0; i < n; ++i) to[i * step] = from[i];
    }
  });
}

void unslice(const OpContext& ctx, const DenseTensor& x, const IntArray&, const IntArray& axes, const IntArray& starts,
             const IntArray& ends, const IntArray& steps, DenseTensor& out) {
  parallel_for(static_cast<int64_t>(out.meta().bytes()), 1, [&](int64_t first, int64_t last) {
    std::memset(out.data<char>() + first, 0, static_cast<size_t>(last - first));
  });
  if (x.numel() == 0) return;
  const SliceWalk slice = slice_walk(ctx, out.dims(), axes, starts, ends, steps);
  const Walk plan = merged(slice.walk);
  switch (size_of(x.dtype())) {
    case 1: return spread_walk(x.data<uint8_t>(), plan, out.data<uint8_t>() + slice.base);
    case 2: return spread_walk(x.data<uint16_t>(), plan, out.data<uint16_t>() + slice.base);
    case 4: return spread_walk(x.data<uint32_t>(), plan, out.data<uint32_t>() + slice.base);
    default: return spread_walk(x.data<uint64_t>(), plan, out.data<uint64_t>() + slice.base);
  }
}

/// Each dim is traversed once per repetition.
void tile(const OpContext&, const DenseTensor& x, const IntArray& repeat_times, DenseTensor& out) {
  const Dims strides = strides_of(x.dims());
  const int rank = out.dims().rank(), added = rank - x.dims().rank(),
            unnamed = rank - static_cast<int>(repeat_times.size());
  Walk walk;
  for (int i = 0; i < rank; ++i) {
    if (i >= unnamed) walk.add(repeat_times[static_cast<size_t>(i - unnamed)], 0);
    if (i >= added) walk.add(x.dims()[i - added], strides[i - added]);
  }
  copy_elements(x, 0, walk, out);
}

/// Rows of the last dim, of which one side of the diagonal is copied and the other set to 0, by the
/// position of the local shard in the whole tensor.
template <bool lower>
void triangle(const OpContext& ctx, const DenseTensor& x, int diagonal, DenseTensor& out) {
  const int rank = x.dims().rank();
  const int64_t rows = x.dims()[rank - 2], width = x.dims()[rank - 1];
  const Dims begin = ctx.input_box(0, x).begin;
  const size_t size = size_of(x.dtype());
  parallel_for(width == 0 ? 0 : x.numel() / width, width, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      // The first column to the right of those that the lower triangle keeps.
      const int64_t border = begin[rank - 2] + r % rows + diagonal + (lower ? 1 : 0) - begin[rank - 1];
      const size_t cut = static_cast<size_t>(std::clamp<int64_t>(border, 0, width)) * size,
                   row = static_cast<size_t>(width) * size;
      const char* from = x.data<char>() + static_cast<size_t>(r) * row;
      char* to = out.data<char>() + static_cast<size_t>(r) * row;
      if (from != to) std::memcpy(to, from, row);
      if (lower) std::memset(to + cut, 0, row - cut);
      else std::memset(to, 0, cut);
    }
  });
}

}  // namespace

void register_move() {
  register_for_all("transpose", &transpose);
  register_for_all("expand", &expand);
  register_for_all("expand_as", &expand_as);
  register_for_all("tile", &tile);
  register_for_all("slice", &slice);
  register_for_all("strided_slice", &strided_slice);
  register_for_all("unslice", &unslice);
  register_for_all("tril", &triangle<true>);
  register_for_all("triu", &triangle<false>);
}

}  // namespace shard::cpu

// Ops that rearrange elements on CUDA, by strided copies: concat, stack, split, unbind, expand, tile, slices and their inverse, roll, pad;
// and triangles.
#include <span>

#include "shard/core/slice_range.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/strided_copy.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// Calls copy(part, its elements in a row, their first in a row of the whole) for each part of `whole`, which has `rows` rows.
template <class Copy>
void each_part(std::span<const DenseTensor> parts, int64_t rows, const Copy& copy) {
  int64_t first = 0;
  for (const DenseTensor& part : parts) {
    const int64_t width = rows == 0 ? 0 : part.numel() / rows;
    if (width != 0) copy(part, width, first);
    first += width;
  }
}

/// Concatenates tensors: each has `rows` runs, which together form the runs of the result.
void join(const OpContext& ctx, std::span<const DenseTensor> x, int64_t rows, DenseTensor& out) {
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const int64_t step = out.numel() / rows;
  each_part(x, rows, [&](const DenseTensor& part, int64_t width, int64_t first) {
    StridedCopy copy(size_of(out.dtype()));
    copy.add(rows, step, width);
    copy.add(width, 1, 1);
    copy.run(ctx, address_of(out, first), part.raw());
  });
}

/// Splits x along a dim into consecutive parts, whose sizes determine their share of each row.
void cut(const OpContext& ctx, const DenseTensor& x, int along, std::span<DenseTensor> out) {
  if (x.numel() == 0) return;
  const DeviceScope scope(x.device().index);
  const int64_t rows = x.dims().numel(0, along), step = x.numel() / rows;
  each_part(out, rows, [&](const DenseTensor& part, int64_t width, int64_t first) {
    StridedCopy copy(size_of(x.dtype()));
    copy.add(rows, width, step);
    copy.add(width, 1, 1);
    copy.run(ctx, part.raw(), address_of(x, first));
  });
}

void concat(const OpContext& ctx, std::span<const DenseTensor> x, const Scalar& axis, DenseTensor& out) {
  join(ctx, x, out.dims().numel(0, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), out.dims().rank())), out);
}
void stack(const OpContext& ctx, std::span<const DenseTensor> x, int axis, DenseTensor& out) {
  join(ctx, x, out.dims().numel(0, normalize_axis(ctx.op, "axis", axis, out.dims().rank())), out);
}
void split(const OpContext& ctx, const DenseTensor& x, const IntArray&, const Scalar& axis,
           std::span<DenseTensor> out) {
  cut(ctx, x, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()), out);
}
void split_with_num(const OpContext& ctx, const DenseTensor& x, int, const Scalar& axis, std::span<DenseTensor> out) {
  cut(ctx, x, normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()), out);
}
void unbind(const OpContext& ctx, const DenseTensor& input, int axis, std::span<DenseTensor> out) {
  cut(ctx, input, normalize_axis(ctx.op, "axis", axis, input.dims().rank()), out);
}

/// Copies the elements of x that the steps reach, which are in the order of out.
void copy_to_result(const OpContext& ctx, const Dims& sizes, const Dims& from_steps, const DenseTensor& x,
                    int64_t first, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Dims to_steps = steps_of(sizes);
  StridedCopy copy(size_of(x.dtype()));
  for (int d = 0; d < sizes.rank(); ++d) copy.add(sizes[d], to_steps[d], from_steps[d]);
  copy.run(ctx, out.raw(), address_of(x, first));
}

/// x with its dims of size 1 repeated to the dims of out.
void repeat(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  const Dims steps = broadcast_strides(x.dims());
  Dims from = out.dims();
  for (int d = 0; d < from.rank(); ++d) from[d] = stride_at(steps, from.rank(), d);
  copy_to_result(ctx, out.dims(), from, x, 0, out);
}

void expand(const OpContext& ctx, const DenseTensor& x, const IntArray&, DenseTensor& out) { repeat(ctx, x, out); }
void expand_as(const OpContext& ctx, const DenseTensor& x, const DenseTensor&, const IntArray&, DenseTensor& out) {
  repeat(ctx, x, out);
}

/// Each dim is traversed once per repetition.
void tile(const OpContext& ctx, const DenseTensor& x, const IntArray& repeat_times, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const Dims from_steps = steps_of(x.dims()), to_steps = steps_of(out.dims());
  const int rank = out.dims().rank(), added = rank - x.dims().rank(),
            unnamed = rank - static_cast<int>(repeat_times.size());
  StridedCopy copy(size_of(x.dtype()));
  for (int d = 0; d < rank; ++d) {
    const int64_t size = d < added ? 1 : x.dims()[d - added];
    if (d >= unnamed) copy.add(repeat_times[static_cast<size_t>(d - unnamed)], to_steps[d] * size, 0);
    if (d >= added) copy.add(size, to_steps[d], from_steps[d - added]);
  }
  copy.run(ctx, out.raw(), x.raw());
}

/// The sizes of a slice, the distances of its elements, and the first.
struct Slice {
  Dims sizes, steps;
  int64_t first = 0;

  /// Of a tensor of shape `dims`; without `strides`, all are 1.
  Slice(const OpContext& ctx, const Dims& dims, const IntArray& axes, const IntArray& starts, const IntArray& ends,
        const IntArray& strides)
      : sizes(dims), steps(steps_of(dims)) {
    for (size_t i = 0; i < axes.size(); ++i) {
      const int axis = normalize_axis(ctx.op, "an axis of axes", axes[i], dims.rank());
      const SliceRange range = slice_range(dims[axis], starts[i], ends[i], strides.empty() ? 1 : strides[i]);
      sizes[axis] = range.count;
      first += range.first * steps[axis];
      steps[axis] *= range.step;
    }
  }
};

void strided_slice(const OpContext& ctx, const DenseTensor& input, const IntArray& axes, const IntArray& starts,
                   const IntArray& ends, const IntArray& strides, DenseTensor& out) {
  if (out.numel() == 0) return;
  const Slice from(ctx, input.dims(), axes, starts, ends, strides);
  copy_to_result(ctx, from.sizes, from.steps, input, from.first, out);
}
void slice(const OpContext& ctx, const DenseTensor& input, const IntArray& axes, const IntArray& starts,
           const IntArray& ends, DenseTensor& out) {
  strided_slice(ctx, input, axes, starts, ends, {}, out);
}

void unslice(const OpContext& ctx, const DenseTensor& x, const IntArray&, const IntArray& axes, const IntArray& starts,
             const IntArray& ends, const IntArray& strides, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  fill_zeros(out);
  if (x.numel() == 0) return;
  const Slice to(ctx, out.dims(), axes, starts, ends, strides);
  const Dims from_steps = steps_of(to.sizes);
  StridedCopy copy(size_of(x.dtype()));
  for (int d = 0; d < to.sizes.rank(); ++d) copy.add(to.sizes[d], to.steps[d], from_steps[d]);
  copy.run(ctx, address_of(out, to.first), x.raw());
}

/// A dim that moves is two parts, which change their places.
void roll(const OpContext& ctx, const DenseTensor& x, const IntArray& shifts, const IntArray& axis, DenseTensor& out) {
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const Dims dims = axis.empty() ? Dims{x.numel()} : x.dims(), steps = steps_of(dims);
  Dims moved = Dims::filled(dims.rank(), 0);
  for (size_t i = 0; i < shifts.size(); ++i) {
    const int d = axis.empty() ? 0 : normalize_axis(ctx.op, "an axis", axis[i], dims.rank());
    moved[d] = (moved[d] + shifts[i] % dims[d] + dims[d]) % dims[d];
  }
  for (unsigned parts = 0; parts < 1u << dims.rank(); ++parts) {  // a bit says that a dim's part at its end is copied
    StridedCopy copy(size_of(x.dtype()));
    int64_t from = 0, to = 0;
    bool is_empty = false;
    for (int d = 0; d < dims.rank(); ++d) {
      const bool end = (parts >> d & 1u) != 0;
      const int64_t size = end ? moved[d] : dims[d] - moved[d];
      is_empty = is_empty || size == 0;
      from += end ? (dims[d] - moved[d]) * steps[d] : 0;
      to += end ? 0 : moved[d] * steps[d];
      copy.add(size, steps[d], steps[d]);
    }
    if (!is_empty) copy.run(ctx, address_of(out, to), address_of(x, from));
  }
}

template <class W>
__global__ void fill_kernel(int64_t count, W* out, W value) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) out[i] = value;
}

/// The dims that grow are whole on each rank.
template <class T>
void pad(const OpContext& ctx, const DenseTensor& x, const IntArray& paddings, const Scalar& pad_value,
         DenseTensor& out) {
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const T value = pad_value.to<T>();
  device_t<T> element;
  memcpy(static_cast<void*>(&element), &value, sizeof(T));
  launch(ctx, fill_kernel<device_t<T>>, grid_for(out.numel(), kThreads), kThreads, out.numel(),
         elements<device_t<T>>(out), element);
  const Dims to_steps = steps_of(out.dims()), from_steps = steps_of(x.dims());
  StridedCopy copy(sizeof(T));
  int64_t first = 0;
  for (int d = 0; d < x.dims().rank(); ++d) {
    copy.add(x.dims()[d], to_steps[d], from_steps[d]);
    first += paddings[2 * static_cast<size_t>(d)] * to_steps[d];
  }
  copy.run(ctx, address_of(out, first), x.raw());
}

/// One side of the diagonal is copied and the other set to 0; `shift` is the column of the diagonal in row 0 of this rank's shard.
template <class W, class N>
__global__ void triangle_kernel(N count, N rows, N width, int64_t shift, bool lower, W* out, const W* x) {
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    const N line = i / width;
    const auto column = static_cast<int64_t>(i - line * width), diagonal = static_cast<int64_t>(line % rows) + shift;
    out[i] = (lower ? column <= diagonal : column >= diagonal) ? x[i] : W{};
  }
}

template <bool lower>
void triangle(const OpContext& ctx, const DenseTensor& x, int diagonal, DenseTensor& out) {
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const int rank = x.dims().rank();
  const Dims begin = ctx.input_box(0, x).begin;
  const int64_t rows = x.dims()[rank - 2], width = x.dims()[rank - 1], count = x.numel();
  const int64_t shift = begin[rank - 2] + diagonal - begin[rank - 1];
  visit_word_and_index(static_cast<int>(size_of(x.dtype())), count, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, triangle_kernel<W, N>, grid_for(count, kThreads), kThreads, static_cast<N>(count), static_cast<N>(rows),
           static_cast<N>(width), shift, lower, static_cast<W*>(out.raw()), static_cast<const W*>(x.raw()));
  });
}

}  // namespace

void register_moving(int backend) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    register_kernel("concat", backend, dtype, &concat);
    register_kernel("stack", backend, dtype, &stack);
    register_kernel("split", backend, dtype, &split);
    register_kernel("split_with_num", backend, dtype, &split_with_num);
    register_kernel("unbind", backend, dtype, &unbind);
    register_kernel("expand", backend, dtype, &expand);
    register_kernel("expand_as", backend, dtype, &expand_as);
    register_kernel("tile", backend, dtype, &tile);
    register_kernel("slice", backend, dtype, &slice);
    register_kernel("strided_slice", backend, dtype, &strided_slice);
    register_kernel("unslice", backend, dtype, &unslice);
    register_kernel("roll", backend, dtype, &roll);
    register_kernel("tril", backend, dtype, &triangle<true>);
    register_kernel("triu", backend, dtype, &triangle<false>);
  }
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("pad", backend, dtype_of<T>, &pad<T>); });
}

}  // namespace shard::cuda

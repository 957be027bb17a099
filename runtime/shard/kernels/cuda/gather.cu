// Lookups by a tensor of indices on CUDA: gather, gather_nd, take_along_axis. A thread copies a word of the result.
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

using cpu::axis_view;
using cpu::AxisView;

/// out[o, i] = x[o, index[i]], rows of `width` words; x has `size` of them for each o, out `count`.
template <class W, class N>
__global__ void gather_kernel(W* out, const W* x, Indices index, N words, N width, N count, int64_t size,
                              IndexCheck check) {
  for (N i = grid_first<N>(); i < words; i += grid_step<N>()) {
    const N row = i / width, column = i - row * width, outer = row / count, at = row - outer * count;
    const int64_t value = index[at];
    if (value >= -size && value < size) {
      const int64_t from = static_cast<int64_t>(outer) * size + (value < 0 ? value + size : value);
      out[i] = x[from * static_cast<int64_t>(width) + static_cast<int64_t>(column)];
    } else {
      out[i] = W{};
      if (column == 0) check.report(at, value);
    }
  }
}

void gather(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const Scalar& axis,
            DenseTensor& out) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis.to<int64_t>(), x.dims().rank()));
  const DeviceScope scope(out.device().index);
  const IndexCheck check(ctx, 1, "index", index, -view.size, view.size);
  const int64_t count = index.numel();
  if (out.numel() == 0) {  // indices are checked nevertheless
    if (count != 0)
      launch(ctx, check_indices_kernel<Indices>, grid_for(count, kThreads), kThreads, Indices(index), count, check);
    return;
  }
  const uint64_t row = static_cast<uint64_t>(view.inner) * size_of(x.dtype());
  const int word = word_size({row, address(x.raw()), address(out.raw())});
  const int64_t width = static_cast<int64_t>(row) / word, words = view.outer * count * width;
  visit_word_and_index(word, words, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, gather_kernel<W, N>, grid_for(words, kThreads), kThreads, static_cast<W*>(out.raw()),
           static_cast<const W*>(x.raw()), Indices(index), static_cast<N>(words), static_cast<N>(width),
           static_cast<N>(count), view.size, check);
  });
}

template <class W, class N>
__global__ void gather_nd_kernel(W* out, const W* x, Indices index, N words, N width, RowCheck check) {
  for (N i = grid_first<N>(); i < words; i += grid_step<N>()) {
    const N row = i / width, column = i - row * width;
    const int64_t slice = check.slice_of(index, static_cast<int64_t>(row), column == 0);
    out[i] = slice < 0 ? W{} : x[slice * static_cast<int64_t>(width) + static_cast<int64_t>(column)];
  }
}

void gather_nd(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const RowCheck check(ctx, x, index);
  if (out.numel() == 0) return check.launch_alone(ctx, index);
  const uint64_t row = out.meta().bytes() / static_cast<uint64_t>(check.rows());
  const int word = word_size({row, address(x.raw()), address(out.raw())});
  const int64_t width = static_cast<int64_t>(row) / word, words = check.rows() * width;
  visit_word_and_index(word, words, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, gather_nd_kernel<W, N>, grid_for(words, kThreads), kThreads, static_cast<W*>(out.raw()),
           static_cast<const W*>(x.raw()), Indices(index), static_cast<N>(words), static_cast<N>(width), check);
  });
}

/// out[o, r, c] = arr[o, indices[o, r, c], c]; `count` rows r, and `inner` columns.
template <class W, class N>
__global__ void take_kernel(W* out, const W* arr, Indices indices, N elements, N inner, N count, int64_t size,
                            IndexCheck check) {
  for (N i = grid_first<N>(); i < elements; i += grid_step<N>()) {
    const N row = i / inner, column = i - row * inner, outer = row / count;
    const int64_t value = indices[i];
    W element{};
    if (check.admits(i, value)) {
      const int64_t from = static_cast<int64_t>(outer) * size + (value < 0 ? value + size : value);
      element = arr[from * static_cast<int64_t>(inner) + static_cast<int64_t>(column)];
    }
    out[i] = element;
  }
}

void take_along_axis(const OpContext& ctx, const DenseTensor& arr, const DenseTensor& indices, int axis,
                     DenseTensor& out) {
  const int along = normalize_axis(ctx.op, "axis", axis, arr.dims().rank());
  const int64_t size = ctx.input_box(0, arr).global[along];
  const int64_t elements = out.numel();
  if (elements == 0) return;
  const DeviceScope scope(out.device().index);
  const AxisView view = axis_view(arr.dims(), along);
  const IndexCheck check(ctx, 1, "indices", indices, -size, size);
  visit_word_and_index(static_cast<int>(size_of(arr.dtype())), elements, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, take_kernel<W, N>, grid_for(elements, kThreads), kThreads, static_cast<W*>(out.raw()),
           static_cast<const W*>(arr.raw()), Indices(indices), static_cast<N>(elements), static_cast<N>(view.inner),
           static_cast<N>(indices.dims()[along]), view.size, check);
  });
}

}  // namespace

void register_gather(int backend) {
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    register_kernel("gather", backend, static_cast<DType>(dtype), gather);
    register_kernel("gather_nd", backend, static_cast<DType>(dtype), gather_nd);
    register_kernel("take_along_axis", backend, static_cast<DType>(dtype), take_along_axis);
  }
}

}  // namespace shard::cuda

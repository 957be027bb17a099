// Rows written or added at positions that a tensor of indices has, on CUDA: scatter and its gradient, scatter_nd_add, index_add, index_sum.
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/row_sums.cuh"

namespace shard::cuda {
namespace {

using cpu::axis_view;
using cpu::AxisView;

/// The row that an index names along a dim of which this rank has `size`, from `begin` on, of `global`.
struct IndexedRow {
  using IsDataCheck = void;
  Indices index;
  IndexCheck check;
  int64_t begin, size, global;

  __device__ int64_t operator()(int64_t i) const {
    const int64_t value = index[i];
    if (!check.admits(i, value)) return -1;
    const int64_t row = value + (value < 0 ? global : 0) - begin;
    return row < size ? row : -1;
  }
};

/// Those of argument `index`, flat input 1 or, of the gradient, 0; without `counts_from_end` they are 0 or more.
IndexedRow indexed_row(const OpContext& ctx, size_t input, const DenseTensor& index, const Box& box, const Dims& local,
                       int along, bool counts_from_end) {
  const int64_t size = box.global[along];
  return {Indices(index), IndexCheck(ctx, input, "index", index, counts_from_end ? -size : 0, size), box.begin[along],
          local[along], size};
}

/// The slice that a row of an index names, as in gather_nd.
struct NamedSlice {
  using IsDataCheck = void;
  Indices index;
  RowCheck check;

  __device__ int64_t operator()(int64_t i) const { return check.slice_of(index, i, true); }
};

/// Adds up rows of `from`, of which a slab has `count`.
template <class D>
struct RowSum : RowsOfSums<D> {
  const D* from;
  int64_t count;

  template <int V, class State>
  __device__ void source(int64_t slab, int64_t source, int64_t at, State (&states)[V]) const {
    read_states<V>(from + (slab * count + source) * this->width, at, states);
  }
  template <int V>
  bool packs() const {
    return this->template rows_pack<V>() && packs_are_aligned<V>(from);
  }
};

/// Adds up the slices of `from` along the dim of a view, into slices of `out`.
template <class T, class RowOf>
void add_rows(const OpContext& ctx, const AxisView& view, int64_t count, const RowOf& row_of, const DenseTensor* first,
              const DenseTensor& from, DenseTensor& out) {
  using D = device_t<T>;
  const Grouping grouping(ctx, view.size, count, row_of);
  sum_groups(
      ctx, grouping, view.outer, view.inner,
      RowSum<D>{{first == nullptr ? nullptr : elements<const D>(*first), elements<D>(out), view.size, view.inner},
                elements<const D>(from),
                count});
}

template <class T>
void scatter_nd_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& updates,
                    DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const NamedSlice row_of{Indices(index), RowCheck(ctx, x, index)};
  copy_all(x, out);
  const auto chosen = static_cast<int>(index.dims()[index.dims().rank() - 1]);
  const AxisView view{1, x.dims().numel(0, chosen), x.dims().numel(chosen, x.dims().rank())};
  add_rows<T>(ctx, view, row_of.check.rows(), row_of, &x, updates, out);
}

template <class T>
void index_add(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& add_value,
               int axis, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const int along = normalize_axis(ctx.op, "axis", axis, x.dims().rank());
  copy_all(x, out);
  add_rows<T>(ctx, axis_view(x.dims(), along), index.numel(),
              indexed_row(ctx, 1, index, ctx.input_box(0, x), x.dims(), along, true), &x, add_value, out);
}

template <class T>
void index_sum(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, int64_t size, int axis,
               DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  view.size = size;
  fill_zeros(out);
  add_rows<T>(ctx, view, index.numel(),
              IndexedRow{Indices(index), IndexCheck(ctx, 1, "index", index, -size, size), 0, size, size}, nullptr, x,
              out);
}

template <class T>
void scatter(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index, const DenseTensor& updates,
             bool overwrite, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  const IndexedRow row_of = indexed_row(ctx, 1, index, ctx.input_box(0, x), x.dims(), 0, false);
  copy_all(x, out);
  const AxisView view{1, x.dims()[0], x.dims().numel(1, x.dims().rank())};
  if (!overwrite) return add_rows<T>(ctx, view, index.numel(), row_of, nullptr, updates, out);
  write_last(ctx, LastSources(ctx, view.size, index.numel(), row_of), static_cast<size_t>(view.inner) * sizeof(T),
             updates.raw(), out.raw());
}

/// The gradient of each update: the row of `out_grad` that it wrote, or, where `overwrite`, that no later one did; else zeros.
template <class W>
__global__ void updates_grad_kernel(LastSourcesView view, int64_t count, int64_t width, bool overwrite,
                                    const W* out_grad, W* updates_grad) {
  for (int64_t source = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; source < count;
       source += int64_t{gridDim.x} * blockDim.y) {
    int64_t row = overwrite ? view.row_written_by(source) : view.rows[source];
    if (row == view.none) row = -1;
    for (int64_t i = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; i < width; i += int64_t{gridDim.z} * blockDim.x)
      updates_grad[source * width + i] = row < 0 ? W{} : out_grad[row * width + i];
  }
}

void scatter_grad(const OpContext& ctx, const DenseTensor& index, const DenseTensor& out_grad, bool overwrite,
                  DenseTensor& x_grad, DenseTensor& updates_grad) {
  const DeviceScope scope(x_grad.device().index);
  const int64_t count = index.numel(), width = out_grad.dims().numel(1, out_grad.dims().rank());
  const LastSources last(ctx, out_grad.dims()[0], count,
                         indexed_row(ctx, 0, index, ctx.input_box(1, out_grad), out_grad.dims(), 0, false));
  const size_t row_bytes = static_cast<size_t>(width) * size_of(out_grad.dtype());
  if (count != 0 && row_bytes != 0) {  // before x_grad is written, which may be out_grad
    const int word = word_size({row_bytes, address(out_grad.raw()), address(updates_grad.raw())});
    const int64_t words = static_cast<int64_t>(row_bytes) / word;
    const RowGrid grid(count, 1, words);
    visit_word(word, [&]<class W>(TypeTag<W>) {
      launch(ctx, updates_grad_kernel<W>, grid.blocks, grid.threads, last.view(), count, words, overwrite,
             static_cast<const W*>(out_grad.raw()), static_cast<W*>(updates_grad.raw()));
    });
  }
  copy_all(out_grad, x_grad);
  write_last(ctx, last, row_bytes, nullptr, x_grad.raw());
}

}  // namespace

void register_scatter(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("scatter_nd_add", backend, dtype_of<T>, &scatter_nd_add<T>);
    register_kernel("index_add", backend, dtype_of<T>, &index_add<T>);
    register_kernel("index_sum", backend, dtype_of<T>, &index_sum<T>);
  });
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("scatter", backend, dtype_of<T>, &scatter<T>);
    register_kernel("scatter_grad", backend, dtype_of<T>, &scatter_grad);
  });
}

}  // namespace shard::cuda

// Ops on CUDA in which a thread decides for itself about one element: searchsorted, one_hot, shard_index.
#include <algorithm>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/device_sort.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// `size` elements of a sequence for each `row` values.
template <class D, bool right>
__global__ void search_kernel(const D* sequence, int64_t size, const D* values, int64_t row, int64_t count,
                              Integers out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t begin = i / row * size;
    const Key<D> key = key_of(values[i], false);
    int64_t low = 0, high = size;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      const Key<D> other = key_of(sequence[begin + middle], false);
      if (right ? other <= key : other < key) low = middle + 1;
      else high = middle;
    }
    out.set(i, low);
  }
}

template <class T>
void searchsorted(const OpContext& ctx, const DenseTensor& sequence, const DenseTensor& values, bool right,
                  DenseTensor& out) {
  using D = device_t<T>;
  const int64_t count = values.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const Dims &rows = sequence.dims(), &dims = values.dims();
  const int64_t row = rows.rank() == 1 ? count : dims[dims.rank() - 1];
  launch(ctx, right ? search_kernel<D, true> : search_kernel<D, false>, grid_for(count, kThreads), kThreads,
         elements<const D>(sequence), rows[rows.rank() - 1], elements<const D>(values), row, count,
         Integers{out.raw(), out.dtype() == DType::int64});
}

template <class N>
__global__ void one_hot_kernel(float* out, Indices x, N count, N classes, IndexCheck check) {
  for (N i = grid_first<N>(); i < count; i += grid_step<N>()) {
    const N row = i / classes, column = i - row * classes;
    const int64_t id = x[row];
    if (column == 0) check.admits(row, id);
    out[i] = id == static_cast<int64_t>(column) ? 1.0f : 0.0f;
  }
}

void one_hot(const OpContext& ctx, const DenseTensor& x, const Scalar& num_classes, DenseTensor& out) {
  const auto classes = num_classes.to<int64_t>();
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const IndexCheck check(ctx, 0, "x", x, 0, classes);
  const int64_t count = out.numel();
  if (count == 0) {  // indices are checked nevertheless
    launch(ctx, check_indices_kernel<Indices>, grid_for(x.numel(), kThreads), kThreads, Indices(x), x.numel(), check);
    return;
  }
  visit_word_and_index(4, count, [&]<class W, class N>(TypeTag<W>, TypeTag<N>) {
    launch(ctx, one_hot_kernel<N>, grid_for(count, kThreads), kThreads, elements<float>(out), Indices(x),
           static_cast<N>(count), static_cast<N>(classes), check);
  });
}

/// The ids from `first` on, `size` of them, are this shard's.
template <class T>
__global__ void shard_index_kernel(const T* x, int64_t count, int64_t first, int64_t size, T others, IndexCheck check,
                                   T* out) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t at = int64_t{x[i]} - first;
    check.admits(i, x[i]);
    out[i] = at >= 0 && at < size ? static_cast<T>(at) : others;
  }
}

template <class T>
void shard_index(const OpContext& ctx, const DenseTensor& x, int index_num, int nshards, int shard_id, int ignore_value,
                 DenseTensor& out) {
  if (x.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const IndexCheck check(ctx, 0, "input", x, 0, index_num);
  const int64_t size = (int64_t{index_num} + nshards - 1) / nshards;
  launch(ctx, shard_index_kernel<T>, grid_for(x.numel(), kThreads), kThreads, elements<const T>(x), x.numel(),
         size * shard_id, size, static_cast<T>(ignore_value), check, elements<T>(out));
}

}  // namespace

void register_search(int backend) {
  for_types(NumberTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("searchsorted", backend, dtype_of<T>, &searchsorted<T>); });
  for_types(Types<int32_t, int64_t>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("one_hot", backend, dtype_of<T>, &one_hot);
    register_kernel("shard_index", backend, dtype_of<T>, &shard_index<T>);
  });
}

}  // namespace shard::cuda

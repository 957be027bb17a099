// softmax on CUDA along any axis: one pass that computes maximum and sum together, one that writes.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// The sum of exp(x - maximum) over the elements seen so far.
template <class M>
struct Partial {
  M maximum;
  M sum;
};

/// exp(from - to), where an empty set (-inf) scales by 1 instead of NaN.
template <class M>
__device__ M rescale(M from, M to) {
  return from == to && from == -INFINITY ? M{1} : exp(from - to);
}

struct Merge {
  template <class M>
  __device__ Partial<M> operator()(const Partial<M>& a, const Partial<M>& b) const {
    const M maximum = fmax(a.maximum, b.maximum);
    return {maximum, a.sum * rescale(a.maximum, maximum) + b.sum * rescale(b.maximum, maximum)};
  }
};

/// One block per row, whose elements are consecutive.
template <class T, int Threads>
__global__ void softmax_rows(T* out, const T* x, int64_t rows, int64_t size) {
  using M = math_t<T>;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* from = x + row * size;
    Partial<M> mine{-INFINITY, 0};
    for (int64_t i = threadIdx.x; i < size; i += Threads) mine = Merge{}(mine, Partial<M>{load(from[i]), 1});
    const Partial<M> all = block_reduce<Threads>(mine, Merge{});
    const M scale = M{1} / all.sum;
    for (int64_t i = threadIdx.x; i < size; i += Threads) {
      out[row * size + i] = store<T>(exp(load(from[i]) - all.maximum) * scale);
    }
  }
}

/// Columns: the elements of one softmax are `inner` apart, and neighbouring threads process
/// neighbouring columns.
template <class T>
__global__ void softmax_columns(T* out, const T* x, int64_t columns, int64_t size, int64_t inner) {
  using M = math_t<T>;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t column = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; column < columns; column += step) {
    const int64_t base = column / inner * inner * size + column % inner;
    Partial<M> all{-INFINITY, 0};
    for (int64_t i = 0; i < size; ++i) all = Merge{}(all, Partial<M>{load(x[base + i * inner]), 1});
    const M scale = M{1} / all.sum;
    for (int64_t i = 0; i < size; ++i) {
      out[base + i * inner] = store<T>(exp(load(x[base + i * inner]) - all.maximum) * scale);
    }
  }
}

template <class T>
void softmax(const OpContext& ctx, const DenseTensor& x, int axis_given, DenseTensor& out) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const Dims& dims = x.dims();
  const int axis = normalize_axis(ctx.op, "axis", axis_given, dims.rank());
  const int64_t size = dims.rank() == 0 ? 1 : dims[axis];
  const int64_t inner = dims.numel(axis + 1, dims.rank());
  const int64_t columns = out.numel() / size;
  D* to = elements<D>(out);
  const D* from = elements<const D>(x);
  if (inner > 1) {
    launch(ctx, softmax_columns<D>, grid_for(columns, 128), 128, to, from, columns, size, inner);
  } else if (size <= 256) {
    launch(ctx, softmax_rows<D, 32>, grid_for(columns * 32, 32), 32, to, from, columns, size);
  } else {
    launch(ctx, softmax_rows<D, 256>, grid_for(columns * 256, 256), 256, to, from, columns, size);
  }
}

template <class... T>
void register_all(int backend, Types<T...>) {
  (register_kernel("softmax", backend, dtype_of<T>, softmax<T>), ...);
}

}  // namespace

void register_softmax(int backend) { register_all(backend, FloatTypes{}); }

}  // namespace shard::cuda

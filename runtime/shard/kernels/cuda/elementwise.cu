// Elementwise arithmetic on CUDA: add and multiply with broadcasting, relu. A new one is a functor
// and a line at the end.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kThreads = 256;

struct Add {
  template <class M>
  __device__ M operator()(M x, M y) const {
    return static_cast<M>(x + y);
  }
};

struct Multiply {
  template <class M>
  __device__ M operator()(M x, M y) const {
    return static_cast<M>(x * y);
  }
};

struct Relu {
  template <class M>
  __device__ M operator()(M x) const {
    return x <= M{0} ? M{0} : x;  // NaN is not below 0 and is kept
  }
};

template <class F, class T, class... Rest>
__device__ T apply(F f, T first, Rest... rest) {
  return store<T>(f(load(first), load(rest)...));
}

/// out[i] = f(in[i]...) with 128-bit loads; the last few elements are processed one by one. `out`
/// may be one of the inputs.
template <class F, class T, class... In>
__global__ void map_packed(F f, int64_t count, T* out, const In*... in) {
  using P = Pack<T>;
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  const int64_t packs = count / P::kSize;
  for (int64_t i = thread; i < packs; i += step) {
    P result;
    const auto each = [&](const auto&... pack) {
#pragma unroll
      for (int k = 0; k < P::kSize; ++k) result.values[k] = apply(f, pack.values[k]...);
    };
    each(load_pack(in, i)...);
    store_pack(out, i, result);
  }
  for (int64_t i = packs * P::kSize + thread; i < count; i += step) out[i] = apply(f, in[i]...);
}

template <class F, class T, class... In>
__global__ void map_single(F f, int64_t count, T* out, const In*... in) {
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += step) out[i] = apply(f, in[i]...);
}

template <class F, class T, class Index>
__global__ void map_broadcast(F f, Index count, Strided<2> shape, T* out, const T* x, const T* y) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t at[2];
    shape.locate(i, at);
    out[i] = apply(f, x[at[0]], y[at[1]]);
  }
}

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/// Launches `f` over operands that all have the shape of `out`.
template <class F, class T, class... In>
void launch_same_shape(const OpContext& ctx, F f, int64_t count, T* out, const In*... in) {
  if ((aligned(out) && ... && aligned(in))) {
    const unsigned grid = grid_for((count + Pack<T>::kSize - 1) / Pack<T>::kSize, kThreads);
    launch(ctx, map_packed<F, T, In...>, grid, kThreads, f, count, out, in...);
  } else {
    launch(ctx, map_single<F, T, In...>, grid_for(count, kThreads), kThreads, f, count, out, in...);
  }
}

Strided<2> broadcast_shape(const Dims& out, const Dims& x, const Dims& y) {
  Strided<2> shape;
  const Dims x_strides = broadcast_strides(x);
  const Dims y_strides = broadcast_strides(y);
  for (int i = 0; i < out.rank(); ++i) {
    shape.append(out[i], {stride_at(x_strides, out.rank(), i), stride_at(y_strides, out.rank(), i)});
  }
  return shape;
}

template <class T, class F>
void binary(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  using D = device_t<T>;
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  if (x.dims() == out.dims() && y.dims() == out.dims()) {
    return launch_same_shape(ctx, F{}, count, elements<D>(out), elements<const D>(x), elements<const D>(y));
  }
  const Strided<2> shape = broadcast_shape(out.dims(), x.dims(), y.dims());
  const unsigned grid = grid_for(count, kThreads);
  if (count < (int64_t{1} << 31)) {  // 32-bit division is several times faster; the grid's step must fit too
    launch(ctx, map_broadcast<F, D, uint32_t>, grid, kThreads, F{}, static_cast<uint32_t>(count), shape,
           elements<D>(out), elements<const D>(x), elements<const D>(y));
  } else {
    launch(ctx, map_broadcast<F, D, int64_t>, grid, kThreads, F{}, count, shape, elements<D>(out), elements<const D>(x),
           elements<const D>(y));
  }
}

template <class T, class F>
void unary(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  using D = device_t<T>;
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  launch_same_shape(ctx, F{}, out.numel(), elements<D>(out), elements<const D>(x));
}

template <class... T>
void register_all(int backend, Types<T...>) {
  (register_kernel("add", backend, dtype_of<T>, binary<T, Add>), ...);
  (register_kernel("multiply", backend, dtype_of<T>, binary<T, Multiply>), ...);
  (register_kernel("relu", backend, dtype_of<T>, unary<T, Relu>), ...);
}

}  // namespace

void register_elementwise(int backend) { register_all(backend, NumberTypes{}); }

}  // namespace shard::cuda

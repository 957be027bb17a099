// cast on CUDA, between all dtypes. Conversions are those of the CPU kernel: towards zero, clamped,
// NaN becomes 0.
#include "shard/kernels/cuda/convert.cuh"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

constexpr int kThreads = 256;

template <class To, class From>
__global__ void cast_kernel(int64_t count, To* out, const From* x) {
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count; i += step)
    out[i] = convert_element<To>(x[i]);
}

template <class T>
void cast(const OpContext& ctx, const DenseTensor& x, DType, DenseTensor& out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DenseTensor* const input = &x;
  if (loop_is_open() && join_loop({.name = "convert_element", .inputs = {&input, 1}, .out = &out})) return;
  const DeviceScope scope(out.device().index);
  visit_dtype(out.dtype(), [&]<class To>(TypeTag<To>) {
    using D = device_t<To>;
    launch(ctx, cast_kernel<D, device_t<T>>, grid_for(count, kThreads), kThreads, count, elements<D>(out),
           elements<const device_t<T>>(x));
  });
}

template <class... T>
void register_all(int backend, Types<T...>) {
  (register_kernel("cast", backend, dtype_of<T>, cast<T>), ...);
}

}  // namespace

void register_cast(int backend) { register_all(backend, AllTypes{}); }

}  // namespace shard::cuda

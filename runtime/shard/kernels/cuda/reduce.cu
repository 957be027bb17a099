// sum, mean, prod, max, min, amax, amin, all and any on CUDA.
#include "shard/kernels/cuda/reduce.cuh"

#include "shard/kernels/cpu/reduce_plan.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

using reduction::Keep;

struct Prod : reduction::Sum {
  template <class A>
  __device__ A identity() const {
    return A(1);
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return a * b;
  }
};
struct Any : reduction::Sum {
  template <class T>
  using Acc = uint8_t;
  template <class A, class T>
  __device__ A term(T value) const {
    return load(value) != math_t<T>(0) ? 1 : 0;
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return static_cast<A>(a | b);
  }
};
struct All : Any {
  template <class A>
  __device__ A identity() const {
    return A(1);
  }
  template <class A>
  __device__ A combine(A a, A b) const {
    return static_cast<A>(a & b);
  }
};

struct DivideBy {
  double count;
  template <class Out, class A>
  __device__ __forceinline__ Out operator()(A value) const {
    return store<Out>(static_cast<math_t<Out>>(value / static_cast<A>(count)));
  }
};

template <class Op, class In, class Out>
void reduce(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  reduction::reduce<device_t<In>>(ctx, x, axes, out.numel(), elements<device_t<Out>>(out), Op{}, Keep{});
}

template <class T>
void mean(const OpContext& ctx, const DenseTensor& x, const IntArray& axes, bool, DenseTensor& out) {
  const DeviceScope scope(out.device().index);
  reduction::reduce<device_t<T>>(ctx, x, axes, out.numel(), elements<device_t<T>>(out), reduction::Sum{},
                                 DivideBy{cpu::reduced_count(ctx, ctx.input_box(0, x).global, axes)});
}

}  // namespace

void register_reduce(int backend) {
  using reduction::Max, reduction::Min, reduction::Sum;
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", backend, dtype_of<T>, reduce<Sum, T, T>);
    register_kernel("prod", backend, dtype_of<T>, reduce<Prod, T, T>);
    register_kernel("mean", backend, dtype_of<T>, mean<T>);
  });
  for_types(IntTypes{} + Types<bool>{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", backend, dtype_of<T>, reduce<Sum, T, int64_t>);
    register_kernel("prod", backend, dtype_of<T>, reduce<Prod, T, int64_t>);
  });
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("max", backend, dtype_of<T>, reduce<Max, T, T>);
    register_kernel("min", backend, dtype_of<T>, reduce<Min, T, T>);
    register_kernel("amax", backend, dtype_of<T>, reduce<Max, T, T>);
    register_kernel("amin", backend, dtype_of<T>, reduce<Min, T, T>);
    register_kernel("all", backend, dtype_of<T>, reduce<All, T, bool>);
    register_kernel("any", backend, dtype_of<T>, reduce<Any, T, bool>);
  });
}

}  // namespace shard::cuda

// Elementwise arithmetic on CUDA of all numbers: add, multiply, relu.
#include "shard/kernels/cuda/elementwise.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

struct Add {
  template <class C>
  static __device__ C apply(C x, C y) {
    return static_cast<C>(x + y);
  }
};

struct Multiply {
  template <class C>
  static __device__ C apply(C x, C y) {
    return static_cast<C>(x * y);
  }
};

struct Relu {
  template <class C>
  static __device__ C apply(C x) {
    return x <= C(0) ? C(0) : x;  // NaN is not below 0 and is kept
  }
};

}  // namespace

void register_elementwise(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("add", backend, dtype_of<T>, &SingleKernel<Add, T, T>::binary);
    register_kernel("multiply", backend, dtype_of<T>, &SingleKernel<Multiply, T, T>::binary);
    register_kernel("relu", backend, dtype_of<T>, &SingleKernel<Relu, T, T>::unary);
  });
}

}  // namespace shard::cuda

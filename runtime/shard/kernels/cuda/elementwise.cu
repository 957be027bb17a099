// Elementwise arithmetic on CUDA of all numbers: add, multiply, relu.
#include "shard/kernels/cuda/elementwise.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

struct Add {
  template <class V>
  static __device__ V apply(V x, V y) {
    return static_cast<V>(x + y);
  }
};

struct Multiply {
  template <class V>
  static __device__ V apply(V x, V y) {
    return static_cast<V>(x * y);
  }
};

struct Relu {
  template <class V>
  static __device__ V apply(V x) {
    return x <= V(0) ? V(0) : x;  // NaN is not below 0 and is kept
  }
};

}  // namespace

void register_elementwise(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("add", backend, dtype_of<T>, &FormulaKernel<Add, T>::binary);
    register_kernel("multiply", backend, dtype_of<T>, &FormulaKernel<Multiply, T>::binary);
    register_kernel("relu", backend, dtype_of<T>, &FormulaKernel<Relu, T>::unary);
  });
}

}  // namespace shard::cuda

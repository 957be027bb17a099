// Elementwise arithmetic on CUDA: that of formulas/arithmetic.inc, larger and smaller, and the basic functions of one tensor.
#include "shard/kernels/cuda/elementwise.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

namespace basic {
#include "shard/kernels/cuda/formulas/basic.inc"
#include "shard/kernels/formulas/arithmetic.inc"
}  // namespace basic

template <class Op, class List>
void add_pair(const char* name, int backend, List types) {
  for_types(types,
            [&]<class T>(TypeTag<T>) { register_kernel(name, backend, dtype_of<T>, &SingleKernel<Op, T, T>::binary); });
}
template <class Op, class List>
void add_single(const char* name, int backend, List types) {
  for_types(types,
            [&]<class T>(TypeTag<T>) { register_kernel(name, backend, dtype_of<T>, &SingleKernel<Op, T, T>::unary); });
}

}  // namespace

void register_elementwise(int backend) {
  add_pair<basic::Add>("add", backend, NumberTypes{});
  add_pair<basic::Subtract>("subtract", backend, NumberTypes{});
  add_pair<basic::Multiply>("multiply", backend, NumberTypes{});
  add_pair<basic::Divide>("divide", backend, FloatTypes{});
  add_pair<basic::Maximum>("maximum", backend, AllTypes{});
  add_pair<basic::Minimum>("minimum", backend, AllTypes{});
  add_pair<basic::Remainder>("remainder", backend, FloatTypes{});
  add_pair<basic::FloorDivide>("floor_divide", backend, FloatTypes{});
  add_pair<basic::Fmax>("fmax", backend, NumberTypes{});
  add_pair<basic::Fmin>("fmin", backend, NumberTypes{});
  add_pair<basic::Heaviside>("heaviside", backend, NumberTypes{});
  add_binary<basic::Atan2>("atan2");
  add_binary<basic::Copysign>("copysign");
  add_binary<basic::Power>("elementwise_pow");
  add_ternary<basic::Lerp>("lerp");
  add_unary<basic::Exp>("exp");
  add_unary<basic::Tanh>("tanh");
  add_unary<basic::Log>("log");
  add_unary<basic::Sin>("sin");
  add_unary<basic::Cos>("cos");
  add_unary<basic::Sqrt>("sqrt");
  add_unary<basic::Rsqrt>("rsqrt");
  add_single<basic::Relu>("relu", backend, NumberTypes{});
  add_single<basic::Square>("square", backend, NumberTypes{});
  add_single<basic::Abs>("abs", backend, NumberTypes{});
}

}  // namespace shard::cuda

// The gradients of formulas/unary_grad.inc on CUDA.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

template <class Formula>
void add_plain(const char* name) {
  add_binary<Formula>(name);
}

namespace unary_grad {
#include "shard/kernels/formulas/unary_grad.inc"
}  // namespace unary_grad

template <class T>
void clip_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& min,
               const Scalar& max, DenseTensor& x_grad) {
  using C = math_t<device_t<T>>;
  VectorKernel<unary_grad::ClipGrad, T, C, C>::binary(ctx, x, out_grad, min.to<C>(), max.to<C>(), x_grad);
}

/// Powers that are products or lines are computed as such, as on the CPU.
template <class T>
void pow_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& y,
              DenseTensor& x_grad) {
  using C = math_t<device_t<T>>;
  const C exponent = y.to<C>();
  if (exponent == C(2)) return VectorKernel<unary_grad::SquareGrad, T>::binary(ctx, x, out_grad, x_grad);
  if (exponent == C(3)) return VectorKernel<unary_grad::CubeGrad, T>::binary(ctx, x, out_grad, x_grad);
  const bool linear = exponent == C(0) || exponent == C(1);
  (linear ? &VectorKernel<unary_grad::LinearGrad, T, C, C>::binary
          : &VectorKernel<unary_grad::PowGrad, T, C, C>::binary)(ctx, x, out_grad, exponent, exponent - C(1), x_grad);
}

}  // namespace

void register_unary_grad(int backend) {
  unary_grad::register_unary_grad_formulas();
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("clip_grad", backend, dtype_of<T>, &clip_grad<T>);
    register_kernel("pow_grad", backend, dtype_of<T>, &pow_grad<T>);
  });
}

}  // namespace shard::cuda

// Elementwise ops of one tensor and numbers on CUDA: scale, clip, pow, increment; and powers of integers.
#include "shard/core/convert.h"
#include "shard/kernels/bound.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {
namespace {

namespace scalar {
#include "shard/kernels/formulas/power.inc"
#include "shard/kernels/formulas/scalar.inc"
}  // namespace scalar

template <class Formula, class V, class T>
void run(const OpContext& ctx, const DenseTensor& x, DenseTensor& out, const Numbers<V>& numbers) {
  using D = device_t<T>;
  run_elementwise<Formula, V, D, D, 1>(ctx, {&x}, out, numbers);
}

template <class T>
void scale(const OpContext& ctx, const DenseTensor& x, const Scalar& scale, const Scalar& bias, bool bias_after_scale,
           DenseTensor& out) {
  using C = math_t<device_t<T>>;
  const Numbers<C> numbers{scale.to<C>(), bias.to<C>()};
  if (bias_after_scale) run<scalar::ScaleThenBias, C, T>(ctx, x, out, numbers);
  else run<scalar::BiasThenScale, C, T>(ctx, x, out, numbers);
}

template <class T>
void increment(const OpContext& ctx, const DenseTensor& x, float value, DenseTensor& out) {
  using C = math_t<device_t<T>>;
  Numbers<C> numbers{C(1), C(0)};
  if constexpr (std::is_integral_v<C>) numbers.second = static_cast<C>(convert<int64_t>(value));  // modulo 2^bits
  else numbers.second = static_cast<C>(value);
  run<scalar::ScaleThenBias, C, T>(ctx, x, out, numbers);
}

template <class T>
void clip(const OpContext& ctx, const DenseTensor& x, const Scalar& min, const Scalar& max, DenseTensor& out) {
  using C = math_t<device_t<T>>;
  run<scalar::Clip, C, T>(ctx, x, out, Numbers<C>{bound<C>(min, true), bound<C>(max, false)});
}

/// Integers are computed as int64, modulo whose range the results are those modulo 2^bits.
template <class T>
void power(const OpContext& ctx, const DenseTensor& x, const Scalar& y, DenseTensor& out) {
  using C = math_t<device_t<T>>;
  if constexpr (std::is_floating_point_v<C>) {
    const C exponent = y.to<C>();
    if (exponent == C(2)) return run<scalar::Square, C, T>(ctx, x, out, {});
    if (exponent == C(3)) return run<scalar::Cube, C, T>(ctx, x, out, {});
    run<scalar::Pow, Number<C>, T>(ctx, x, out, Numbers<Number<C>>{exponent, C(0)});
  } else {
    run<scalar::IntegerPow, int64_t, T>(ctx, x, out, Numbers<int64_t>{y.to<int64_t>(), 0});
  }
}

}  // namespace

void register_scalar(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("scale", backend, dtype_of<T>, &scale<T>);
    register_kernel("increment", backend, dtype_of<T>, &increment<T>);
    register_kernel("clip", backend, dtype_of<T>, &clip<T>);
    register_kernel("pow", backend, dtype_of<T>, &power<T>);
  });
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("elementwise_pow", backend, dtype_of<T>, &SingleKernel<scalar::IntegerPower, T, T>::binary);
  });
}

}  // namespace shard::cuda

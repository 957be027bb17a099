// CPU kernels of the gradients of gelu, silu and swiglu. The forward kernels are in unary.cc and
// binary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/activation_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_exp.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// The derivative of x * P(N(0, 1) <= x) is P(N(0, 1) <= x) + x * the density of N(0, 1) at x.
struct GeluGrad {
  template <class C>
  static double apply(double x, double grad) {
    const Normal normal = normal_at(x);
    const double near = at_least(-40.0, -at_least(-40.0, -x));  // bell is 0 outside
    return grad * (normal.below + near * 0.39894228040143268 * normal.bell);
  }
};
struct FastGeluGrad {
  static HWY_INLINE Floats apply(Floats x, Floats grad) { return grad * fast_gelu_slope(x); }
};
/// The gradient of gelu_tanh_of.
struct GeluTanhGrad {
  template <class C>
  static HWY_INLINE C apply(C x, C grad) {
    const GeluTanh<C> at = gelu_tanh_at(x);
    return grad * times_sigmoid(C(1) + at.x * at.slope * logistic_of(at.twice_u).rest, at.twice_u);
  }
};

template <class T>
void gelu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, bool approximate,
               DenseTensor& x_grad) {
  if (approximate) binary<GeluTanhGrad, T, T>(ctx, x, out_grad, x_grad);
  else if constexpr (std::is_same_v<T, double>) binary<GeluGrad, T, T>(ctx, x, out_grad, x_grad);
  else VectorKernel<FastGeluGrad, T>::binary(ctx, x, out_grad, x_grad);
}

struct FastSiluGrad {
  static HWY_INLINE Floats apply(Floats x, Floats out, Floats grad) {
    const BothSigmoids s = both_sigmoids(x);
    return grad * (s.at + out * s.rest);
  }
};
void silu_grad_row(const Row& row) {
  const double *x = static_cast<const double*>(row.in[0]), *out = static_cast<const double*>(row.in[1]),
               *grad = static_cast<const double*>(row.in[2]);
  for (int64_t i = 0; i < row.n; ++i) {
    const Logistic<double> s = logistic_of<double>({x[i], 0});
    static_cast<double*>(row.out)[i] = grad[i] * (s.at + out[i] * s.rest);
  }
}

template <class T>
void silu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out, const DenseTensor& out_grad,
               DenseTensor& x_grad) {
  if constexpr (std::is_same_v<T, double>) {
    const DenseTensor* const inputs[] = {&x, &out, &out_grad};
    run_broadcast(&silu_grad_row, inputs, x_grad, nullptr);
  } else {
    VectorKernel<FastSiluGrad, T>::ternary(ctx, x, out, out_grad, x_grad);
  }
}

template <class T>
void swiglu_grad_row(const T* x, const T* y, const T* grad, T* x_grad, T* y_grad, int64_t n) {
  using C = Compute<T>;
  for (int64_t i = 0; i < n; ++i) {
    const C gate = static_cast<C>(x[i]), g = static_cast<C>(grad[i]), value = silu_of(gate);
    const Logistic<C> s = logistic_of<C>({gate, C(0)});
    x_grad[i] = static_cast<T>(g * static_cast<C>(y[i]) * (s.at + value * s.rest));
    y_grad[i] = static_cast<T>(g * value);
  }
}

/// Without y each row of x holds the gates and then the values, and so does its gradient.
template <class T>
void swiglu_grad(const OpContext&, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                 DenseTensor& x_grad, DenseTensor& y_grad) {
  const int64_t count = out_grad.numel();
  if (y.defined()) {
    return parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      swiglu_grad_row(x.data<T>() + begin, y.data<T>() + begin, out_grad.data<T>() + begin, x_grad.data<T>() + begin,
                      y_grad.data<T>() + begin, end - begin);
    });
  }
  const int64_t width = out_grad.dims()[out_grad.dims().rank() - 1];
  parallel_for(width == 0 ? 0 : count / width, 8 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gates = x.data<T>() + 2 * r * width;
      T* to = x_grad.data<T>() + 2 * r * width;
      swiglu_grad_row(gates, gates + width, out_grad.data<T>() + r * width, to, to + width, width);
    }
  });
}

void register_activation_grad_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("gelu_grad", kBackend, dtype_of<T>, &gelu_grad<T>);
    register_kernel("silu_grad", kBackend, dtype_of<T>, &silu_grad<T>);
    register_kernel("swiglu_grad", kBackend, dtype_of<T>, &swiglu_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_activation_grad_for_target);
void register_activation_grad() { HWY_DYNAMIC_DISPATCH(register_activation_grad_for_target)(); }
}  // namespace shard::cpu
#endif

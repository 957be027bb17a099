// CPU kernels of the gradients of gelu, silu and swiglu, which stand in unary.cc and binary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_grad.cc"
#include "kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/binary_row.h"
#include "kernels/cpu/functions.h"
#include "kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// x * P(N(0, 1) <= x) grows by P(N(0, 1) <= x) + x * the density of N(0, 1) at x.
struct GeluGrad {
  template <class C>
  static HWY_INLINE C apply(C x, C grad) {
    const Normal<C> normal = normal_at(x);
    return grad * (normal.below + x * C(0.39894228040143268) * normal.bell);
  }
};
/// Of gelu_tanh_of.
struct GeluTanhGrad {
  template <class C>
  static C apply(C x, C grad) {
    const C t = tanh_of(C(0.7978845608028654) * (x + C(0.044715) * x * x * x));
    const C flat = C(1) - t * t;
    const C turn = C(0.5) * x * flat * C(0.7978845608028654) * (C(1) + C(3 * 0.044715) * x * x);
    return grad * (C(0.5) * (C(1) + t) + select(flat == C(0), C(0), turn));  // far out x * x may be infinite
  }
};

template <class T>
void gelu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, bool approximate, DenseTensor& x_grad) {
  if (approximate) binary<GeluTanhGrad, T, T>(ctx, x, out_grad, x_grad);
  else binary<GeluGrad, T, T>(ctx, x, out_grad, x_grad);
}

template <class T>
void silu_grad_row(const Row& row) {
  using C = Compute<T>;
  const T *x = static_cast<const T*>(row.in[0]), *out = static_cast<const T*>(row.in[1]), *grad = static_cast<const T*>(row.in[2]);
  T* to = static_cast<T*>(row.out);
  for (int64_t i = 0; i < row.n; ++i) {
    const C s = sigmoid_of(static_cast<C>(x[i]));
    to[i] = static_cast<T>(static_cast<C>(grad[i]) * (s + static_cast<C>(out[i]) * (C(1) - s)));
  }
}

template <class T>
void silu_grad(const OpContext&, const DenseTensor& x, const DenseTensor& out, const DenseTensor& out_grad, DenseTensor& x_grad) {
  const DenseTensor* const inputs[] = {&x, &out, &out_grad};
  run_broadcast(&silu_grad_row<T>, inputs, x_grad, nullptr);
}

template <class T>
void swiglu_grad_row(const T* x, const T* y, const T* grad, T* x_grad, T* y_grad, int64_t n) {
  using C = Compute<T>;
  for (int64_t i = 0; i < n; ++i) {
    const C gate = static_cast<C>(x[i]), g = static_cast<C>(grad[i]), s = sigmoid_of(gate);
    x_grad[i] = static_cast<T>(g * static_cast<C>(y[i]) * (s + gate * s * (C(1) - s)));
    y_grad[i] = static_cast<T>(g * gate * s);
  }
}

/// Without y each row of x holds the gates and then the values, and so does its gradient.
template <class T>
void swiglu_grad(const OpContext&, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad, DenseTensor& x_grad, DenseTensor& y_grad) {
  const int64_t count = out_grad.numel();
  if (y.defined()) {
    return parallel_for(count, 8, [&](int64_t begin, int64_t end) {
      swiglu_grad_row(x.data<T>() + begin, y.data<T>() + begin, out_grad.data<T>() + begin, x_grad.data<T>() + begin, y_grad.data<T>() + begin, end - begin);
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

void register_activation_grad_here() {
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
HWY_EXPORT(register_activation_grad_here);
void register_activation_grad() { HWY_DYNAMIC_DISPATCH(register_activation_grad_here)(); }
}  // namespace shard::cpu
#endif

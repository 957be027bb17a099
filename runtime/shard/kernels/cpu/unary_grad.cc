// CPU kernels of the gradients of elementwise functions of one tensor: of a saved tensor (the input
// or the output, whichever the formula needs) and the gradient of the output. Gradients that are
// composites of other ops are in runtime/shard/gradients/.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/unary_grad.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

// g is the gradient of the output.
struct ExpGrad {
  template <class C>
  static C apply(C out, C g) {
    return g * out;
  }
};
struct LogGrad {
  template <class C>
  static C apply(C x, C g) {
    return g / x;
  }
};
struct TanhGrad {
  template <class V>
  static HWY_INLINE V apply(V out, V g) {
    return g * (1.0 - out * out);
  }
};
struct SqrtGrad {
  template <class C>
  static C apply(C out, C g) {
    return C(0.5) * g / out;
  }
};
struct RsqrtGrad {
  template <class C>
  static C apply(C out, C g) {
    return C(-0.5) * g * (out * out * out);
  }
};
struct SigmoidGrad {
  template <class V>
  static HWY_INLINE V apply(V out, V g) {
    return g * (out * (1.0 - out));
  }
};
struct SinGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    return g * cos(x);
  }
};
struct CosGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    return -g * sin(x);
  }
};
struct SquareGrad {
  template <class C>
  static C apply(C x, C g) {
    return C(2) * g * x;
  }
};
struct AbsGrad {
  template <class C>
  static C apply(C x, C g) {
    return select(x > C(0), g, select(x < C(0), -g, C(0)));
  }
};
struct ReluGrad {
  template <class C>
  static C apply(C out, C g) {
    return select(out > C(0), g, C(0));
  }
};

struct ClipGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& bounds) {
    return select(hn::And(x > bounds.first, x < bounds.second), g, V(0));
  }
};
/// p has the exponent of the function, and that exponent minus one.
struct PowGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    return g * p.first * pow(x, p.second);
  }
};
/// The gradient of a linear function, such as x^1 and x^0.
struct LinearGrad {
  template <class V>
  static HWY_INLINE V apply(V, V g, const Numbers<V>& p) {
    return g * p.first;
  }
};
struct CubeGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    return g * 3.0 * (x * x);
  }
};

template <class T>
void clip_grad(const OpContext&, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& min,
               const Scalar& max, DenseTensor& x_grad) {
  using C = Compute<T>;
  const Numbers<C> bounds{min.to<C>(), max.to<C>()};
  run_binary(&vector_row<ClipGrad, T, 0, 1>, x, out_grad, x_grad, &bounds);
}

template <class T>
void pow_grad(const OpContext&, const DenseTensor& x, const DenseTensor& out_grad, const Scalar& y,
              DenseTensor& x_grad) {
  using C = Compute<T>;
  const C exponent = y.to<C>();
  const Numbers<C> params{exponent, exponent - C(1)};
  RowLoop loop = &vector_row<PowGrad, T, 0, 1>;
  if (exponent == C(0) || exponent == C(1)) loop = &vector_row<LinearGrad, T, 0, 1>;
  else if (exponent == C(2)) loop = &binary_row<SquareGrad, T, T>;
  else if (exponent == C(3)) loop = &vector_row<CubeGrad, T, 0, 1>;
  run_binary(loop, x, out_grad, x_grad, &params);
}

template <class Op>
void add_op(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
}

void register_unary_grad_for_target() {
  add_op<ExpGrad>("exp_grad");
  add_op<LogGrad>("log_grad");
  add_binary<TanhGrad>("tanh_grad");
  add_op<SqrtGrad>("sqrt_grad");
  add_op<RsqrtGrad>("rsqrt_grad");
  add_binary<SigmoidGrad>("sigmoid_grad");
  add_binary<SinGrad>("sin_grad");
  add_binary<CosGrad>("cos_grad");
  add_op<SquareGrad>("square_grad");
  add_op<AbsGrad>("abs_grad");
  add_op<ReluGrad>("relu_grad");
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("clip_grad", kBackend, dtype_of<T>, &clip_grad<T>);
    register_kernel("pow_grad", kBackend, dtype_of<T>, &pow_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_unary_grad_for_target);
void register_unary_grad() { HWY_DYNAMIC_DISPATCH(register_unary_grad_for_target)(); }
}  // namespace shard::cpu
#endif

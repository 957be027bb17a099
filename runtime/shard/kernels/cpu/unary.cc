// CPU kernels of elementwise functions of one tensor, with the formulas of functions.h or functions
// of SLEEF. Ops with numbers are in scalar.cc; later functions and activations are in
// transcendental.cc, special.cc and activation.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/unary.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/cpu/vector_exp.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

// Formulas of vectors.
struct VectorExp {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return exp(x);
  }
};
struct FastExp {
  static HWY_INLINE Floats apply(Floats x) { return fast_exp(x); }
};
struct FastTanh {
  static HWY_INLINE Floats apply(Floats x) { return fast_tanh(x); }
};
struct FastSigmoid {
  static HWY_INLINE Floats apply(Floats x) { return fast_sigmoid(x); }
};
struct FastSilu {
  static HWY_INLINE Floats apply(Floats x) { return fast_silu(x); }
};
struct FastGelu {
  static HWY_INLINE Floats apply(Floats x) { return fast_gelu(x); }
};
struct VectorTanh {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return tanh(x);
  }
};
struct Log {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return log(x);
  }
};
struct Sin {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return sin(x);
  }
};
struct Cos {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return cos(x);
  }
};
struct Sqrt {
  template <class C>
  static C apply(C x) {
    return std::sqrt(x);
  }
};
struct Rsqrt {
  template <class C>
  static C apply(C x) {
    return C(1) / std::sqrt(x);
  }
};
struct Sigmoid {
  static double apply(double x) { return sigmoid_of(x); }
};
struct Silu {
  static double apply(double x) { return silu_of(x); }
};
struct Gelu {
  static double apply(double x) { return normal_at(x).times; }
};
struct ApproximateGelu {
  template <class C>
  static HWY_INLINE C apply(C x) {
    return gelu_tanh_of(x);
  }
};
struct Square {
  template <class C>
  static C apply(C x) {
    return wrap_mul(x, x);
  }
};
struct Abs {
  template <class C>
  static C apply(C x) {
    if constexpr (std::is_floating_point_v<C>) return std::abs(x);
    else if constexpr (std::is_signed_v<C>) return x < 0 ? wrap_sub(C(0), x) : x;
    else return x;
  }
};
struct Relu {
  template <class C>
  static C apply(C x) {
    return x < C(0) ? C(0) : x;
  }
};

template <class Op, class T>
void unary_row(const Row& row) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(row.in[0]);
  T* out = static_cast<T*>(row.out);
  for (int64_t i = 0, n = row.n; i < n; ++i) out[i] = static_cast<T>(Op::apply(static_cast<C>(x[i])));
}

template <class Op, class T>
void unary(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(&unary_row<Op, T>, x, out);
}

/// The row loop of a formula of vectors of float, and for double of a function of one number.
template <class Single, class Double, class T>
constexpr RowLoop mixed_row() {
  if constexpr (std::is_same_v<T, double>) return &unary_row<Double, T>;
  else return &vector_row<Single, T, 0>;
}
template <class Single, class Double, class T>
void mixed(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(mixed_row<Single, Double, T>(), x, out);
}

template <class T>
void gelu(const OpContext&, const DenseTensor& x, bool approximate, DenseTensor& out) {
  run_unary(approximate ? &unary_row<ApproximateGelu, T> : mixed_row<FastGelu, Gelu, T>(), x, out);
}

/// Formulas of vectors of float and of double.
template <class Single, class Double>
void add_formulas(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    using Formula = std::conditional_t<std::is_same_v<T, double>, Double, Single>;
    register_kernel(name, kBackend, dtype_of<T>, &VectorKernel<Formula, T>::unary);
  });
}
/// A formula of vectors of float, and a function of one double.
template <class Single, class Double>
void add_mixed(const char* name) {
  for_types(FloatTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &mixed<Single, Double, T>); });
}

template <class Op, class List>
void add_op(const char* name, List types) {
  for_types(types, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &unary<Op, T>); });
}

void register_unary_for_target() {
  add_formulas<FastExp, VectorExp>("exp");
  add_formulas<FastTanh, VectorTanh>("tanh");
  add_unary<Log>("log");
  add_unary<Sin>("sin");
  add_unary<Cos>("cos");
  add_op<Sqrt>("sqrt", FloatTypes{});
  add_op<Rsqrt>("rsqrt", FloatTypes{});
  add_mixed<FastSigmoid, Sigmoid>("sigmoid");
  add_mixed<FastSilu, Silu>("silu");
  add_mixed<FastSilu, Silu>("swish");
  add_op<Relu>("relu", NumberTypes{});
  add_op<Square>("square", NumberTypes{});
  add_op<Abs>("abs", NumberTypes{});
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("gelu", kBackend, dtype_of<T>, &gelu<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_unary_for_target);
void register_unary() { HWY_DYNAMIC_DISPATCH(register_unary_for_target)(); }
}  // namespace shard::cpu
#endif

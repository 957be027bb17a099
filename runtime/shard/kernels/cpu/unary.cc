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
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

struct Exp {
  template <class C>
  static C apply(C x) {
    return exp_of(x);
  }
};
struct Tanh {
  template <class C>
  static C apply(C x) {
    return tanh_of(x);
  }
};

// Formulas of vectors.
struct VectorExp {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return exp(x);
  }
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
  template <class C>
  static C apply(C x) {
    return sigmoid_of(x);
  }
};
struct Silu {
  template <class C>
  static C apply(C x) {
    return silu_of(x);
  }
};
struct Gelu {
  template <class C>
  static HWY_INLINE C apply(C x) {
    return normal_at(x).times;
  }  // a function call would prevent vectorisation of the loop
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
  for (int64_t i = 0, n = row.n; i < n; ++i) out[i] = static_cast<T>(Op::template apply<C>(static_cast<C>(x[i])));
}

template <class Op, class T>
void unary(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(&unary_row<Op, T>, x, out);
}

template <class T>
void gelu(const OpContext&, const DenseTensor& x, bool approximate, DenseTensor& out) {
  run_unary(approximate ? &unary_row<ApproximateGelu, T> : &unary_row<Gelu, T>, x, out);
}

/// A function that compilers vectorise for float, and for double a formula of vectors.
template <class Single, class Double>
void add_mixed(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    constexpr bool wide = std::is_same_v<T, double>;
    register_kernel(name, kBackend, dtype_of<T>, wide ? &VectorKernel<Double, T>::unary : &unary<Single, T>);
  });
}

template <class Op, class List>
void add_op(const char* name, List types) {
  for_types(types, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &unary<Op, T>); });
}

void register_unary_for_target() {
  add_mixed<Exp, VectorExp>("exp");
  add_mixed<Tanh, VectorTanh>("tanh");
  add_unary<Log>("log");
  add_unary<Sin>("sin");
  add_unary<Cos>("cos");
  add_op<Sqrt>("sqrt", FloatTypes{});
  add_op<Rsqrt>("rsqrt", FloatTypes{});
  add_op<Sigmoid>("sigmoid", FloatTypes{});
  add_op<Silu>("silu", FloatTypes{});
  add_op<Silu>("swish", FloatTypes{});
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

// Elementwise arithmetic on CUDA: that of formulas/arithmetic.inc, larger and smaller, and the basic functions of one tensor.
#include "shard/kernels/cuda/elementwise.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/arithmetic.inc"

/// NaN wins over every number.
struct Maximum {
  template <class C>
  static __device__ C apply(C a, C b) {
    return a > b || a != a ? a : b;
  }
};
struct Minimum {
  template <class C>
  static __device__ C apply(C a, C b) {
    return a < b || a != a ? a : b;
  }
};

struct Relu {
  template <class C>
  static __device__ C apply(C x) {
    if constexpr (std::is_unsigned_v<C>) return x;
    else return x < C(0) ? C(0) : x;  // NaN is not below 0 and is kept
  }
};
struct Square {
  template <class C>
  static __device__ C apply(C x) {
    return wrap_mul(x, x);
  }
};
struct Abs {
  template <class C>
  static __device__ C apply(C x) {
    if constexpr (std::is_floating_point_v<C>) return ::fabs(x);
    else if constexpr (std::is_signed_v<C>) return x < 0 ? wrap_sub(C(0), x) : x;
    else return x;
  }
};

#define SHARD_FUNCTION(Name, formula) \
  struct Name {                       \
    template <class V>                \
    static __device__ V apply(V x) {  \
      return formula;                 \
    }                                 \
  };
SHARD_FUNCTION(Exp, exp(x))
SHARD_FUNCTION(Tanh, tanh(x))
SHARD_FUNCTION(Log, log(x))
SHARD_FUNCTION(Sin, sin(x))
SHARD_FUNCTION(Cos, cos(x))
SHARD_FUNCTION(Sqrt, sqrt(x))
SHARD_FUNCTION(Rsqrt, 1.0 / sqrt(x))
#undef SHARD_FUNCTION

#define SHARD_FUNCTION(Name, formula)     \
  struct Name {                           \
    template <class V>                    \
    static __device__ V apply(V x, V y) { \
      return formula;                     \
    }                                     \
  };
SHARD_FUNCTION(Power, pow(x, y))
SHARD_FUNCTION(Atan2, atan2(x, y))
SHARD_FUNCTION(Copysign, copysign(x, y))
#undef SHARD_FUNCTION

struct Lerp {
  template <class V>
  static __device__ V apply(V a, V b, V weight) {
    return a + weight * (b - a);
  }
};

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
  add_pair<Add>("add", backend, NumberTypes{});
  add_pair<Subtract>("subtract", backend, NumberTypes{});
  add_pair<Multiply>("multiply", backend, NumberTypes{});
  add_pair<Divide>("divide", backend, FloatTypes{});
  add_pair<Maximum>("maximum", backend, AllTypes{});
  add_pair<Minimum>("minimum", backend, AllTypes{});
  add_pair<Remainder>("remainder", backend, FloatTypes{});
  add_pair<FloorDivide>("floor_divide", backend, FloatTypes{});
  add_pair<Fmax>("fmax", backend, NumberTypes{});
  add_pair<Fmin>("fmin", backend, NumberTypes{});
  add_pair<Heaviside>("heaviside", backend, NumberTypes{});
  add_binary<Atan2>("atan2");
  add_binary<Copysign>("copysign");
  add_binary<Power>("elementwise_pow");
  add_ternary<Lerp>("lerp");
  add_unary<Exp>("exp");
  add_unary<Tanh>("tanh");
  add_unary<Log>("log");
  add_unary<Sin>("sin");
  add_unary<Cos>("cos");
  add_unary<Sqrt>("sqrt");
  add_unary<Rsqrt>("rsqrt");
  add_single<Relu>("relu", backend, NumberTypes{});
  add_single<Square>("square", backend, NumberTypes{});
  add_single<Abs>("abs", backend, NumberTypes{});
}

}  // namespace shard::cuda

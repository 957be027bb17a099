// What formulas compute with on a device: numbers that they treat as they treat a vector, functions, arithmetic of integers. Kernels
// that are compiled when the library runs (fused_loop.cc) include this file too.
#pragma once

#include <cmath>

#include "shard/kernels/cuda/numbers.cuh"

namespace shard::cuda {

/// A float or double that formulas treat as they treat a vector. Literals of formulas convert to it, so that they do not make
/// float arithmetic double.
template <class C>
struct Number {
  using Element = C;
  C value;

  __host__ __device__ Number(C number) : value(number) {}  // NOLINT: converts
  template <class Literal, class = std::enable_if_t<std::is_arithmetic_v<Literal> && !std::is_same_v<Literal, C>>>
  __host__ __device__ Number(Literal number) : value(static_cast<C>(number)) {}  // NOLINT: converts

  friend __device__ Number operator+(Number a, Number b) { return a.value + b.value; }
  friend __device__ Number operator-(Number a, Number b) { return a.value - b.value; }
  friend __device__ Number operator*(Number a, Number b) { return a.value * b.value; }
  friend __device__ Number operator/(Number a, Number b) { return a.value / b.value; }
  friend __device__ Number operator-(Number a) { return -a.value; }
  friend __device__ bool operator<(Number a, Number b) { return a.value < b.value; }
  friend __device__ bool operator>(Number a, Number b) { return a.value > b.value; }
  friend __device__ bool operator<=(Number a, Number b) { return a.value <= b.value; }
  friend __device__ bool operator>=(Number a, Number b) { return a.value >= b.value; }
  friend __device__ bool operator==(Number a, Number b) { return a.value == b.value; }
  friend __device__ Number select(bool condition, Number a, Number b) { return condition ? a : b; }
  friend __device__ Number copysign(Number size, Number sign) { return ::copysign(size.value, sign.value); }
};

__device__ inline bool both(bool a, bool b) { return a && b; }

// The functions of CUDA, whose errors are at most a few units of the last place. They themselves are found in this namespace as before.
#define SHARD_NUMBER_FUNCTION(name)               \
  using ::name;                                   \
  template <class C>                              \
  __device__ inline Number<C> name(Number<C> x) { \
    return ::name(x.value);                       \
  }
SHARD_NUMBER_FUNCTION(sqrt)
SHARD_NUMBER_FUNCTION(floor)
SHARD_NUMBER_FUNCTION(ceil)
SHARD_NUMBER_FUNCTION(trunc)
SHARD_NUMBER_FUNCTION(exp)
SHARD_NUMBER_FUNCTION(expm1)
SHARD_NUMBER_FUNCTION(log)
SHARD_NUMBER_FUNCTION(log1p)
SHARD_NUMBER_FUNCTION(log2)
SHARD_NUMBER_FUNCTION(log10)
SHARD_NUMBER_FUNCTION(sin)
SHARD_NUMBER_FUNCTION(cos)
SHARD_NUMBER_FUNCTION(tan)
SHARD_NUMBER_FUNCTION(asin)
SHARD_NUMBER_FUNCTION(acos)
SHARD_NUMBER_FUNCTION(atan)
SHARD_NUMBER_FUNCTION(sinh)
SHARD_NUMBER_FUNCTION(cosh)
SHARD_NUMBER_FUNCTION(tanh)
SHARD_NUMBER_FUNCTION(asinh)
SHARD_NUMBER_FUNCTION(acosh)
SHARD_NUMBER_FUNCTION(atanh)
SHARD_NUMBER_FUNCTION(erf)
SHARD_NUMBER_FUNCTION(lgamma)
#undef SHARD_NUMBER_FUNCTION

template <class C>
__device__ inline Number<C> abs(Number<C> x) {
  return ::fabs(x.value);
}
/// To even numbers where two are nearest.
template <class C>
__device__ inline Number<C> round(Number<C> x) {
  return ::rint(x.value);
}
template <class C>
__device__ inline Number<C> pow(Number<C> x, Number<C> y) {
  return ::pow(x.value, y.value);
}
template <class V>
__device__ V erf_of(V x) {
  return erf(x);
}
template <class C>
__device__ inline Number<C> atan2(Number<C> x, Number<C> y) {
  return ::atan2(x.value, y.value);
}

// Arithmetic of single numbers; that of integers is modulo 2^bits.
template <class C, bool = std::is_integral_v<C> && !std::is_same_v<C, bool>>
struct Wrap {
  using type = C;
};
template <class C>
struct Wrap<C, true> {
  using type = decltype(std::make_unsigned_t<C>() + 0u);
};
template <class C>
__device__ inline C wrap_add(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) + static_cast<W>(b));
}
template <class C>
__device__ inline C wrap_sub(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) - static_cast<W>(b));
}
template <class C>
__device__ inline C wrap_mul(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) * static_cast<W>(b));
}

/// The numbers of an op, such as a slope and an offset.
template <class V>
struct Numbers {
  V first = V(0);
  V second = V(0);
};

template <class Formula, class V, class... In>
concept TakesNumbers = requires(const Numbers<V>& numbers, In... in) {
  Formula::apply(in..., numbers);
};

template <class Formula, class V, class... In>
__device__ auto evaluate(const Numbers<V>& numbers, In... in) {
  if constexpr (TakesNumbers<Formula, V, In...>) return Formula::apply(in..., numbers);
  else return Formula::apply(in...);
}

/// The type in which formulas of vectors compute on a device, or that in which formulas of single numbers do.
template <class T>
using number_t = Number<math_t<T>>;

template <class V>
struct NumberValue {
  static __host__ __device__ V of(V number) { return number; }
};
template <class C>
struct NumberValue<Number<C>> {
  static __host__ __device__ C of(Number<C> number) { return number.value; }
};

/// A formula of elements, computed in V: an element of the result.
template <class Formula, class V, class Out, class... T>
__device__ Out apply_formula(const Numbers<V>& numbers, T... in) {
  const auto result = evaluate<Formula>(numbers, V(load(in))...);
  return store<Out>(NumberValue<std::remove_const_t<decltype(result)>>::of(result));
}

}  // namespace shard::cuda

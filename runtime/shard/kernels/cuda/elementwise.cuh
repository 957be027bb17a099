// Elementwise kernels on CUDA: the numbers that formulas compute with, and the launcher for tensors of equal shapes and for
// broadcast. A formula is a struct with a static function `apply`, as in kernels/formulas; its file registers it by add_unary,
// add_binary or add_ternary.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/registry.h"

#define SHARD_FORMULA_INLINE __device__ inline

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

// The functions of CUDA, whose errors are at most a few units of the last place.
#define SHARD_NUMBER_FUNCTION(name)               \
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

/// The inputs and the output of a kernel, and the numbers of the op in the type of arithmetic.
template <class V, class T, class Out, int Inputs>
struct Operands {
  const T* in[Inputs];
  Out* out;
  Numbers<V> numbers;
};

/// The type in which formulas of vectors compute on a device, or that in which formulas of single numbers do.
template <class T>
using number_t = Number<math_t<T>>;

template <class V>
struct NumberValue {
  static __device__ V of(V number) { return number; }
};
template <class C>
struct NumberValue<Number<C>> {
  static __device__ C of(Number<C> number) { return number.value; }
};

template <class Formula, class V, class T, class Out, int Inputs, class F>
__device__ Out apply_formula(const Operands<V, T, Out, Inputs>& operands, F element) {
  const auto in = [&](int n) { return V(load(element(n))); };
  const auto result = [&] {
    if constexpr (Inputs == 1) return evaluate<Formula>(operands.numbers, in(0));
    else if constexpr (Inputs == 2) return evaluate<Formula>(operands.numbers, in(0), in(1));
    else return evaluate<Formula>(operands.numbers, in(0), in(1), in(2));
  }();
  return store<Out>(NumberValue<std::remove_const_t<decltype(result)>>::of(result));
}

/// Tensors of one shape: `packs` packs of 16 bytes, and the elements behind them one by one. `out` may be one of the inputs.
template <class Formula, class V, class T, class Out, int Inputs>
__global__ void map_elements(int64_t packs, int64_t count, Operands<V, T, Out, Inputs> operands) {
  constexpr int kSize = Pack<T>::kSize;
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = thread; i < packs; i += step) {
    Pack<T> in[Inputs];
#pragma unroll
    for (int n = 0; n < Inputs; ++n) in[n] = load_pack(operands.in[n], i);
    Out results[kSize];
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      results[k] = apply_formula<Formula>(operands, [&](int n) { return in[n].values[k]; });
    }
    store_elements<kSize>(operands.out, i, results);
  }
  for (int64_t i = packs * kSize + thread; i < count; i += step) {
    operands.out[i] = apply_formula<Formula>(operands, [&](int n) { return operands.in[n][i]; });
  }
}

template <class Formula, class V, class T, class Out, int Inputs, class Index>
__global__ void map_broadcast(Index count, Strided<Inputs> shape, Operands<V, T, Out, Inputs> operands) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t at[Inputs];
    shape.locate(i, at);
    operands.out[i] = apply_formula<Formula>(operands, [&](int n) { return operands.in[n][at[n]]; });
  }
}

inline constexpr int kElementThreads = 256;

/// The dims of `out` with the strides of each input.
template <int Inputs>
Strided<Inputs> broadcast_shape(const Dims& out, const DenseTensor* const (&inputs)[Inputs]) {
  Strided<Inputs> shape;
  for (int i = 0; i < out.rank(); ++i) {
    int64_t steps[Inputs];
    for (int n = 0; n < Inputs; ++n) steps[n] = stride_at(broadcast_strides(inputs[n]->dims()), out.rank(), i);
    shape.append(out[i], steps);
  }
  return shape;
}

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/// out = Formula of the inputs, which are broadcast to its shape.
template <class Formula, class V, class T, class Out, int Inputs>
void run_elementwise(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out,
                     Numbers<V> numbers) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  Operands<V, T, Out, Inputs> operands{{}, elements<Out>(out), numbers};
  bool same = true, aligned = is_aligned(out.raw());
  for (int n = 0; n < Inputs; ++n) {
    operands.in[n] = elements<const T>(*inputs[n]);
    same = same && inputs[n]->dims() == out.dims();
    aligned = aligned && is_aligned(inputs[n]->raw());
  }
  if (same) {
    const int64_t packs = aligned ? count / Pack<T>::kSize : 0;
    const unsigned grid = grid_for(aligned ? packs + 1 : count, kElementThreads);
    return launch(ctx, map_elements<Formula, V, T, Out, Inputs>, grid, kElementThreads, packs, count, operands);
  }
  const Strided<Inputs> shape = broadcast_shape(out.dims(), inputs);
  const unsigned grid = grid_for(count, kElementThreads);
  if (count < (int64_t{1} << 31)) {  // 32-bit division is several times faster; the grid's step must fit too
    launch(ctx, map_broadcast<Formula, V, T, Out, Inputs, uint32_t>, grid, kElementThreads,
           static_cast<uint32_t>(count), shape, operands);
  } else {
    launch(ctx, map_broadcast<Formula, V, T, Out, Inputs, int64_t>, grid, kElementThreads, count, shape, operands);
  }
}

/// The kernel of a formula of one, two or three tensors of T and of at most two numbers of types N; V is what it computes in.
template <class Formula, class V, class T, class R, class... N>
struct FormulaKernel {
  using D = device_t<T>;

  static void unary(const OpContext& ctx, const DenseTensor& x, N... numbers, DenseTensor& out) {
    run<1>(ctx, {&x}, out, numbers...);
  }
  static void binary(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, N... numbers, DenseTensor& out) {
    run<2>(ctx, {&x, &y}, out, numbers...);
  }
  static void ternary(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& z,
                      N... numbers, DenseTensor& out) {
    run<3>(ctx, {&x, &y, &z}, out, numbers...);
  }

 private:
  template <int Inputs>
  static void run(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out, N... numbers) {
    run_elementwise<Formula, V, D, device_t<R>, Inputs>(ctx, inputs, out,
                                                        Numbers<V>{V(static_cast<math_t<D>>(numbers))...});
  }
};

/// The kernel of a formula of vectors.
template <class Formula, class T, class... N>
using VectorKernel = FormulaKernel<Formula, number_t<device_t<T>>, T, T, N...>;
/// The kernel of a formula of single numbers.
template <class Formula, class T, class R>
using SingleKernel = FormulaKernel<Formula, math_t<device_t<T>>, T, R>;

/// The id of the backend "cuda".
inline int backend_id() {
  static const int id = find_backend("cuda");
  return id;
}

template <class Formula, class... N>
void add_unary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::unary);
  });
}
template <class Formula, class... N>
void add_binary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::binary);
  });
}
template <class Formula, class... N>
void add_ternary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, backend_id(), dtype_of<T>, &VectorKernel<Formula, T, N...>::ternary);
  });
}

}  // namespace shard::cuda

// Elementwise kernels on CUDA: the numbers that formulas compute with, and the launcher for tensors of equal shapes and for
// broadcast. A formula is a struct with a static function `apply`, as in kernels/formulas; its file registers it by add_unary,
// add_binary or add_ternary.
#pragma once

#include <utility>

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/formula.cuh"
#include "shard/kernels/cuda/fused_loop.h"
#include "shard/kernels/registry.h"

namespace shard::cuda {

/// The inputs and the output of a kernel, and the numbers of the op in the type of arithmetic.
template <class V, class T, class Out, int Inputs>
struct Operands {
  const T* in[Inputs];
  Out* out;
  Numbers<V> numbers;
};

template <class Formula, class V, class T, class Out, int Inputs, class F>
__device__ Out apply_to(const Operands<V, T, Out, Inputs>& operands, F element) {
  const Numbers<V>& numbers = operands.numbers;
  if constexpr (Inputs == 1) return apply_formula<Formula, V, Out>(numbers, element(0));
  else if constexpr (Inputs == 2) return apply_formula<Formula, V, Out>(numbers, element(0), element(1));
  else return apply_formula<Formula, V, Out>(numbers, element(0), element(1), element(2));
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
      results[k] = apply_to<Formula>(operands, [&](int n) { return in[n].values[k]; });
    }
    store_elements<kSize>(operands.out, i, results);
  }
  for (int64_t i = packs * kSize + thread; i < count; i += step) {
    operands.out[i] = apply_to<Formula>(operands, [&](int n) { return operands.in[n][i]; });
  }
}

template <class Formula, class V, class T, class Out, int Inputs, class Index>
__global__ void map_broadcast(Index count, Strided<Inputs> shape, Operands<V, T, Out, Inputs> operands) {
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    int64_t at[Inputs];
    shape.locate(i, at);
    operands.out[i] = apply_to<Formula>(operands, [&](int n) { return operands.in[n][at[n]]; });
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

/// Whether the open loop of the thread takes the call of a formula.
template <class Formula, class V, int Inputs>
bool join_loop(const DenseTensor* const (&inputs)[Inputs], const DenseTensor& out, const Numbers<V>& numbers) {
  using C = decltype(NumberValue<V>::of(numbers.first));
  const auto [space, name] = formula_name(__PRETTY_FUNCTION__);
  LoopCall call{.formulas = space, .name = name, .number = dtype_of<C>, .is_vector = !std::is_same_v<V, C>};
  call.takes_numbers = []<int... n>(std::integer_sequence<int, n...>) {
    return TakesNumbers<Formula, V, std::conditional_t<n >= 0, V, V>...>;
  }
  (std::make_integer_sequence<int, Inputs>());
  const C values[2] = {NumberValue<V>::of(numbers.first), NumberValue<V>::of(numbers.second)};
  for (size_t i = 0; i < 2; ++i) memcpy(&call.numbers[i], &values[i], sizeof(C));
  call.inputs = inputs;
  call.out = &out;
  return join_loop(call);
}

/// out = Formula of the inputs, which are broadcast to its shape.
template <class Formula, class V, class T, class Out, int Inputs>
void run_elementwise(const OpContext& ctx, const DenseTensor* const (&inputs)[Inputs], DenseTensor& out,
                     Numbers<V> numbers) {
  const int64_t count = out.numel();
  if (count == 0) return;
  if (loop_is_open() && join_loop<Formula>(inputs, out, numbers)) return;
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

// The row loop of formulas of vectors (vector_math.h), for each .cc that compiles itself once per
// instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_VECTOR_ROW_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_VECTOR_ROW_H
#undef SHARD_KERNELS_CPU_VECTOR_ROW_H
#else
#define SHARD_KERNELS_CPU_VECTOR_ROW_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <type_traits>

#include "shard/core/op_context.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// The numbers of an op, such as a slope and an offset.
template <class C>
struct Numbers {
  C first = C(0);
  C second = C(0);
};

template <class Formula, class V, class... In>
HWY_INLINE V evaluate(const Numbers<V>& numbers, In... in) {
  if constexpr (requires { Formula::apply(in..., numbers); }) return Formula::apply(in..., numbers);
  else return Formula::apply(in...);
}

/// Elements [begin, begin + n) of an input in the type of arithmetic, and copies of the last one up
/// to a multiple of a vector.
template <class T>
HWY_INLINE void fill_block(const Row& row, size_t input, int64_t begin, int64_t n, Compute<T>* to) {
  const T* from = static_cast<const T*>(row.in[input]) + begin * row.step[input];
  if (row.step[input] == 1) {
    widen(from, n, to);
  } else {
    std::fill_n(to, n, static_cast<Compute<T>>(*from));
  }
  for (int64_t j = n; j % Vector<Compute<T>>::kLanes != 0; ++j) to[j] = to[n - 1];
}

/// out[i] = Formula::apply(in[k][i]...), where Formula may take the numbers of the op too. What does
/// not fill a vector is computed in one as well, so the bits of an element do not depend on its place.
template <class Formula, class T, size_t... k>
void vector_row(const Row& row) {
  using C = Compute<T>;
  using V = Vector<C>;
  constexpr int64_t kBlock = 256;
  const Numbers<C> given = row.params == nullptr ? Numbers<C>{} : *static_cast<const Numbers<C>*>(row.params);
  const Numbers<V> numbers{V(static_cast<double>(given.first)), V(static_cast<double>(given.second))};
  T* out = static_cast<T*>(row.out);
  int64_t i = 0;
  if constexpr (std::is_same_v<T, C>) {
    if ((... && (row.step[k] == 1))) {
      // A long formula leaves no room in the processor for loads of many vectors ahead.
      for (; i + V::kLanes <= row.n; i += V::kLanes) {
        (__builtin_prefetch(static_cast<const char*>(row.in[k]) + i * static_cast<int64_t>(sizeof(T)) + 2048), ...);
        evaluate<Formula>(numbers, V::load(static_cast<const T*>(row.in[k]) + i)...).store(out + i);
      }
    }
  }
  C in[sizeof...(k)][kBlock], results[kBlock];
  for (; i < row.n; i += kBlock) {
    const int64_t n = std::min(kBlock, row.n - i);
    (fill_block<T>(row, k, i, n, in[k]), ...);
    for (int64_t j = 0; j < n; j += V::kLanes) evaluate<Formula>(numbers, V::load(in[k] + j)...).store(results + j);
    narrow(results, n, out + i);
  }
}

/// The kernel of a formula of one tensor, of two, or of three, and of at most two numbers of types N.
template <class Formula, class T, class... N>
struct VectorKernel {
  static void unary(const OpContext&, const DenseTensor& x, N... numbers, DenseTensor& out) {
    const Numbers<Compute<T>> params{static_cast<Compute<T>>(numbers)...};
    run_unary(&vector_row<Formula, T, 0>, x, out, &params);
  }
  static void binary(const OpContext&, const DenseTensor& x, const DenseTensor& y, N... numbers, DenseTensor& out) {
    const Numbers<Compute<T>> params{static_cast<Compute<T>>(numbers)...};
    run_binary(&vector_row<Formula, T, 0, 1>, x, y, out, &params);
  }
  static void ternary(const OpContext&, const DenseTensor& x, const DenseTensor& y, const DenseTensor& z, N... numbers,
                      DenseTensor& out) {
    const Numbers<Compute<T>> params{static_cast<Compute<T>>(numbers)...};
    const DenseTensor* const inputs[] = {&x, &y, &z};
    run_broadcast(&vector_row<Formula, T, 0, 1, 2>, inputs, out, &params);
  }
};

template <class Formula, class... N>
void add_unary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, kBackend, dtype_of<T>, &VectorKernel<Formula, T, N...>::unary);
  });
}
template <class Formula, class... N>
void add_binary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, kBackend, dtype_of<T>, &VectorKernel<Formula, T, N...>::binary);
  });
}
template <class Formula, class... N>
void add_ternary(const char* name) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel(name, kBackend, dtype_of<T>, &VectorKernel<Formula, T, N...>::ternary);
  });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

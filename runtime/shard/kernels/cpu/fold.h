// Reductions of a line of numbers that vectorise and have the same bits on every instruction set,
// for each .cc that compiles itself once per instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_FOLD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_FOLD_H
#undef SHARD_KERNELS_CPU_FOLD_H
#else
#define SHARD_KERNELS_CPU_FOLD_H
#endif

#include "hwy/highway.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "shard/core/dtype.h"
#include "shard/core/float16.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

constexpr int64_t kLanes = 32;  // accumulators of a line, the same on every instruction set

/// A pack has as many numbers as a vector of AVX2. Accumulators of this type stay in registers; an
/// array of numbers does not.
template <class C>
constexpr int64_t kPackWidth = 32 / static_cast<int64_t>(sizeof(C));
template <class C>
struct PackOf {
  typedef C type __attribute__((vector_size(32)));
};
template <class C>
using Pack = typename PackOf<C>::type;

/// The pack of term(0), ..., term(kPackWidth<C> - 1).
template <class C, class Term>
HWY_INLINE Pack<C> pack_of(const Term& term) {
  C terms[kPackWidth<C>];
  for (int64_t j = 0; j < kPackWidth<C>; ++j) terms[j] = term(j);
  Pack<C> pack;
  std::memcpy(&pack, terms, sizeof(pack));
  return pack;
}

/// The numbers x[0], ..., x[kPackWidth<C> - 1] in C, the type of arithmetic of T.
template <class C, class T>
HWY_INLINE Pack<C> load_pack(const T* x) {
  if constexpr (std::is_same_v<T, C>) {
    Pack<C> pack;
    std::memcpy(&pack, x, sizeof(pack));
    return pack;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // which comes with F16C; better instruction sets have smaller numbers
  } else if constexpr (is_half<T>) {
    static_assert(std::is_same_v<C, float>);
    __m128i halves;
    std::memcpy(&halves, x, sizeof(halves));
    if constexpr (std::is_same_v<T, float16>) return reinterpret_cast<Pack<C>>(_mm256_cvtph_ps(halves));
    else return reinterpret_cast<Pack<C>>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
#endif
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    typedef uint16_t Halves __attribute__((vector_size(16)));
    Halves halves;
    std::memcpy(&halves, x, sizeof(halves));
    const Pack<uint32_t> bits = __builtin_convertvector(halves, Pack<uint32_t>) << 16;
    Pack<C> pack;
    std::memcpy(&pack, &bits, sizeof(pack));
    return pack;
  } else {
    return pack_of<C>([=](int64_t j) { return static_cast<C>(x[j]); });
  }
}

template <int64_t step, class C, size_t... lane>
HWY_INLINE Pack<C> rotated(Pack<C> pack, std::index_sequence<lane...>) {
  return __builtin_shufflevector(pack, pack, (lane + step) % sizeof...(lane)...);
}

/// Combines the lanes of a pack in pairs that are `step` apart, then half as far, down to neighbours.
template <int64_t step, class C, class Combine>
HWY_INLINE C fold_pack(Pack<C> pack, const Combine& combine) {
  pack = combine(pack, rotated<step, C>(pack, std::make_index_sequence<kPackWidth<C>>()));
  if constexpr (step > 1) return fold_pack<step / 2, C>(pack, combine);
  else return pack[0];
}

/// The terms 0 to n - 1 combined, in kLanes accumulators that are combined at the end. Each begins
/// with `start`, which must not change a result: the identity, or one of the terms where combining a
/// term twice is the same as once. `combine` takes two numbers or two packs. A term may have a function
/// pack(i) for the terms i to i + kPackWidth<C> - 1.
template <class C, class Term, class Combine>
HWY_INLINE C fold(int64_t n, C start, const Term& term, const Combine& combine) {
  constexpr int64_t kWidth = kPackWidth<C>, kPacks = kLanes / kWidth;
  Pack<C> sums[kPacks];
  for (Pack<C>& sum : sums) sum = start - Pack<C>{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kPacks; ++v) {
      if constexpr (requires { term.pack(i); }) sums[v] = combine(sums[v], term.pack(i + v * kWidth));
      else sums[v] = combine(sums[v], pack_of<C>([&](int64_t j) { return term(i + v * kWidth + j); }));
    }
  }
  if (i < n) {
    C lanes[kLanes];
    std::memcpy(lanes, sums, sizeof(lanes));
    for (int64_t j = 0; i + j < n; ++j) lanes[j] = combine(lanes[j], term(i + j));
    std::memcpy(sums, lanes, sizeof(lanes));
  }
#pragma GCC unroll 8
  for (int64_t width = kPacks / 2; width > 0; width /= 2) {
    for (int64_t v = 0; v < width; ++v) sums[v] = combine(sums[v], sums[v + width]);
  }
  return fold_pack<kWidth / 2, C>(sums[0], combine);
}

/// The larger or smaller of two numbers, or of each pair in two packs; NaN wins.
struct Larger {
  template <class V>
  HWY_INLINE V operator()(const V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) return a > b ? a : b;
    else return ((a > b) | (a != a)) ? a : b;
  }
};
struct Smaller {
  template <class V>
  HWY_INLINE V operator()(const V& a, const V& b) const {
    if constexpr (std::is_integral_v<V>) return a < b ? a : b;
    else return ((a < b) | (a != a)) ? a : b;
  }
};

/// The sum of term(i) over [0, n) in C.
template <class C, class Term>
HWY_INLINE C sum_of(int64_t n, const Term& term) {
  return fold(n, C(0), term, [](auto a, auto b) { return a + b; });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Lines of 16-bit floats in the type of arithmetic and back, by the conversions of the processor, for each .cc that compiles itself
// once per instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_HALF_LINES_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_HALF_LINES_H
#undef SHARD_KERNELS_CPU_HALF_LINES_H
#else
#define SHARD_KERNELS_CPU_HALF_LINES_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/scratch.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// to[i] = from[i] for n numbers. What does not fill a vector is converted in one as well, so that the bits of a NaN do not depend on
/// its place.
template <class T>
HWY_INLINE void widen(const T* from, int64_t n, Compute<T>* to) {
  using C = Compute<T>;
  if constexpr (is_half<T>) {
    constexpr int64_t kWidth = kPackWidth<C>;
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const Pack<C> pack = load_pack<C>(from + i);
      std::memcpy(to + i, &pack, sizeof(pack));
    }
    if (i == n) return;
    T rest[kWidth] = {};
    std::copy(from + i, from + n, rest);
    const Pack<C> pack = load_pack<C>(rest);
    std::memcpy(to + i, &pack, static_cast<size_t>(n - i) * sizeof(C));
  } else {
    std::copy_n(from, n, to);
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // as in load_pack
HWY_INLINE __m128i halves_of(const float* numbers) {
  return _mm256_cvtps_ph(_mm256_loadu_ps(numbers), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#endif

/// to[i] = from[i], rounded to nearest even, for n numbers.
template <class T>
HWY_INLINE void narrow(const Compute<T>* from, int64_t n, T* to) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2  // as in load_pack
  if constexpr (std::is_same_v<T, float16>) {
    constexpr int64_t kWidth = kPackWidth<float>;
    int64_t i = 0;
    for (; i + kWidth <= n; i += kWidth) {
      const __m128i halves = halves_of(from + i);
      std::memcpy(static_cast<void*>(to + i), &halves, sizeof(halves));
    }
    if (i == n) return;
    float rest[kWidth] = {};
    std::copy(from + i, from + n, rest);
    const __m128i halves = halves_of(rest);
    std::memcpy(static_cast<void*>(to + i), &halves, static_cast<size_t>(n - i) * sizeof(T));
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(from[i]);
}

/// to[i] = term(i), which is in the type of arithmetic, for n numbers.
template <class T, class Term>
HWY_INLINE void write_line(T* to, int64_t n, const Term& term) {
  if constexpr (is_half<T>) {
    constexpr int64_t kBlock = 256;
    Compute<T> block[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = n - begin < kBlock ? n - begin : kBlock;
      for (int64_t i = 0; i < size; ++i) block[i] = term(begin + i);
      narrow(block, size, to + begin);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = term(i);
  }
}

/// A line in the type of arithmetic: itself, or a copy of 16-bit floats.
template <class T>
class WideLine {
 public:
  WideLine(const T* from, int64_t n) {
    if constexpr (is_half<T>) {
      widen(from, n, copy_.emplace(n).get());
      line_ = copy_->get();
    } else {
      line_ = from;
    }
  }
  const Compute<T>* get() const { return line_; }

 private:
  std::optional<Scratch<Compute<T>>> copy_;
  const Compute<T>* line_;
};

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

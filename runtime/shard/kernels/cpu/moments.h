// Sums of numbers and of squares of distances from a center, of the type of arithmetic in blocks: vectors have more floats than doubles. For
// each .cc that compiles itself once per instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_MOMENTS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_MOMENTS_H
#undef SHARD_KERNELS_CPU_MOMENTS_H
#else
#define SHARD_KERNELS_CPU_MOMENTS_H
#endif

#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// The numbers at x in the type of arithmetic, as terms of fold().
template <class C, class T>
struct Numbers {
  const T* x;

  HWY_INLINE C operator()(int64_t i) const { return static_cast<C>(x[i]); }
  HWY_INLINE Pack<C> pack(int64_t i) const {
    // The hardware prefetches within a page of this size only.
    __builtin_prefetch(reinterpret_cast<const char*>(x + i) + 4096);
    return load_pack<C>(x + i);
  }
};

/// The squares of their differences to a center.
template <class C, class T>
struct Squares {
  const T* x;
  C center;

  HWY_INLINE C operator()(int64_t i) const {
    const C difference = static_cast<C>(x[i]) - center;
    return difference * difference;
  }
  HWY_INLINE Pack<C> pack(int64_t i) const {
    const Pack<C> difference = load_pack<C>(x + i) - center;
    return difference * difference;
  }
};

/// Sums of blocks of n terms, of which term_at(first) has those from `first` on, added up in double.
template <class C, class TermAt>
HWY_INLINE double sum_of_blocks(int64_t n, const TermAt& term_at) {
  constexpr int64_t kBlock = 512;
  double total = 0;
  for (int64_t first = 0; first < n; first += kBlock)
    total += static_cast<double>(sum_of<C>(std::min(kBlock, n - first), term_at(first)));
  return total;
}
template <class C, class T>
double sum_of_numbers(const T* x, int64_t n) {
  return sum_of_blocks<C>(n, [=](int64_t first) { return Numbers<C, T>{x + first}; });
}
template <class C, class T>
double sum_of_squares(const T* x, int64_t n, C center) {
  return sum_of_blocks<C>(n, [=](int64_t first) { return Squares<C, T>{x + first, center}; });
}

/// A mean in the type of arithmetic, and what it lacks. Squares of differences to the first part have a mean that is larger by the square
/// of the second.
template <class C>
struct Center {
  explicit Center(double mean)
      : rounded(static_cast<C>(mean)), rest(std::isfinite(mean) ? mean - static_cast<double>(rounded) : 0) {}

  /// The mean of the squares of differences to the mean itself.
  double variance(double mean_of_squares) const { return std::max(mean_of_squares - rest * rest, 0.0); }

  C rounded;
  double rest;
};

// What float holds, with room for what is computed from it.
inline constexpr double kLargestOfFloat = 1e30, kSmallestOfFloat = 1e-30;
/// False for sums of squares that need double.
inline bool fits_float(double squares) { return squares > kSmallestOfFloat && squares < kLargestOfFloat; }
inline bool fit_float(const std::vector<double>& factors) {
  return std::all_of(factors.begin(), factors.end(), [](double value) { return std::abs(value) < kLargestOfFloat; });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

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

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// Combines lanes [0, 2 * width) into the first half. The widths are constants, so that the loops
/// vectorise.
template <int64_t width, class C, class Combine>
HWY_INLINE void fold_lanes(C* lanes, const Combine& combine) {
  for (int64_t j = 0; j < width; ++j) lanes[j] = combine(lanes[j], lanes[j + width]);
  if constexpr (width > 1) fold_lanes<width / 2>(lanes, combine);
}

/// combine(... combine(start, term(0)), ..., term(n - 1)), in sixteen accumulators that are combined at the end.
template <class C, class Term, class Combine>
HWY_INLINE C fold(int64_t n, C start, const Term& term, const Combine& combine) {
  constexpr int64_t kLanes = 16;
  C lanes[kLanes];
  for (int64_t j = 0; j < kLanes; ++j) lanes[j] = start;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = combine(lanes[j], term(i + j));
  }
  for (int64_t j = 0; i + j < n; ++j) lanes[j] = combine(lanes[j], term(i + j));
  fold_lanes<kLanes / 2>(lanes, combine);
  return lanes[0];
}

/// The sum of term(i) over [0, n) in C.
template <class C, class Term>
HWY_INLINE C sum_of(int64_t n, const Term& term) {
  return fold(n, C(0), term, [](C a, C b) { return a + b; });
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

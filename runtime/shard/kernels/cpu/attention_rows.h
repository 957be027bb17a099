// Passes over a row of scores of a block of attention: the largest one, the weights and their sum, and the gradients of
// the scores. Rows are as long as a multiple of kBlockStep.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_ATTENTION_ROWS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_ATTENTION_ROWS_H
#undef SHARD_KERNELS_CPU_ATTENTION_ROWS_H
#else
#define SHARD_KERNELS_CPU_ATTENTION_ROWS_H
#endif

#include "hwy/highway.h"

#include <cmath>
#include <type_traits>

#include "shard/core/float16.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// exp(x) of numbers that are hardly above 0, within 2 ulp; 0 below -88.03, NaN for NaN.
HWY_INLINE Vector<float> exp_of_low(Vector<float> x) {
  using Tag = Vector<float>::Tag;
  const Tag tag;
  const hn::RebindToUnsigned<Tag> words;
  const auto clamped = hn::Max(hn::Set(tag, -88.03f), x.lanes);  // of a NaN and a number, Max returns the second
  // Adding 1.5 * 2^23 rounds to the nearest integer, and leaves 127 more in the lowest bits: the exponent of 2^n, 0
  // for 2^-127, which the lowest numbers give.
  const auto magic = hn::Set(tag, 12583039.0f);
  const auto shifted = hn::MulAdd(clamped, hn::Set(tag, 1.44269504088896341f), magic);
  const auto n = hn::Sub(shifted, magic);
  auto r = hn::NegMulAdd(n, hn::Set(tag, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(tag, -2.12194440e-4f), r);
  auto p = hn::MulAdd(r, hn::Set(tag, 1.9875691500e-4f), hn::Set(tag, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(tag, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(tag, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(tag, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(tag, 5.0000001201e-1f));
  p = hn::MulAdd(p, r, hn::Set(tag, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(tag, 1.0f));
  return hn::Mul(p, hn::BitCast(tag, hn::ShiftLeft<23>(hn::BitCast(words, shifted))));
}

/// The same for a weight of type F: within 3e-6 of it where it is bfloat16.
template <class F>
HWY_INLINE Vector<float> weight_of(Vector<float> x) {
  if constexpr (!std::is_same_v<F, bfloat16>) {
    return exp_of_low(x);
  } else {
    using Tag = Vector<float>::Tag;
    const Tag tag;
    const hn::RebindToUnsigned<Tag> words;
    // As there, and 2^(n + r) = 2^n * p(r) by a polynomial of degree 4.
    const auto clamped = hn::Max(hn::Set(tag, -88.03f), x.lanes);
    const auto magic = hn::Set(tag, 12583039.0f), by = hn::Set(tag, 1.44269504088896341f);
    const auto shifted = hn::MulAdd(clamped, by, magic);
    const auto r = hn::MulSub(clamped, by, hn::Sub(shifted, magic));
    auto p = hn::MulAdd(r, hn::Set(tag, 0.009582853f), hn::Set(tag, 0.055906426f));
    p = hn::MulAdd(p, r, hn::Set(tag, 0.24024099f));
    p = hn::MulAdd(p, r, hn::Set(tag, 0.6931242f));
    p = hn::MulAdd(p, r, hn::Set(tag, 1.0f));
    return hn::Mul(p, hn::BitCast(tag, hn::ShiftLeft<23>(hn::BitCast(words, shifted))));
  }
}

/// The same numbers, or bfloat16 that are next to them.
HWY_INLINE void store_rounded(Vector<float> x, float* to) { x.store(to); }
HWY_INLINE void store_rounded(Vector<float> x, bfloat16* to) {
  using Tag = Vector<float>::Tag;
  const hn::RebindToUnsigned<Tag> words;
  const hn::RebindToSigned<Tag> numbers;
  const auto bits = hn::ShiftRight<16>(hn::Add(hn::BitCast(words, x.lanes), hn::Set(words, 0x8000u)));
  const hn::Rebind<uint16_t, Tag> halves;
  hn::StoreU(hn::DemoteTo(halves, hn::BitCast(numbers, bits)), halves, reinterpret_cast<uint16_t*>(to));
}

/// The largest of the row; NaN counts only if nothing else is above -infinity.
template <class C>
C largest_of(const C* row, int64_t width) {
  using V = Vector<C>;
  constexpr typename V::Tag kTag;
  auto low = hn::Set(kTag, lowest<C>()), high = low;  // two, since each step waits for the one before it
  for (int64_t j = 0; j < width; j += 2 * V::kLanes) {
    low = hn::Max(V::load(row + j).lanes, low);
    high = hn::Max(V::load(row + j + V::kLanes).lanes, high);
  }
  const C found = hn::GetLane(hn::MaxOfLanes(kTag, hn::Max(low, high)));
  if (found != lowest<C>()) return found;
  return fold(
      width, lowest<C>(), [=](int64_t j) { return row[j]; }, Larger());
}

/// weights[j] = exp(row[j] - largest) for factors of type F, which may be the same row. Returns their sum before they are
/// rounded.
template <class F, class Weight>
float exponentials(const float* row, int64_t width, float largest, Weight* weights) {
  using V = Vector<float>;
  constexpr int64_t kSums = kLanes / V::kLanes;  // lanes of sums are as in fold
  hn::Vec<V::Tag> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(V::Tag());
  const V top = V(static_cast<double>(largest));
  for (int64_t j = 0; j < width; j += kLanes) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kSums; ++v) {
      const V weight = weight_of<F>(V::load(row + j + v * V::kLanes) - top);
      sums[v] = hn::Add(sums[v], weight.lanes);
      store_rounded(weight, weights + j + v * V::kLanes);
    }
  }
  float lanes[kLanes];
  for (int64_t v = 0; v < kSums; ++v) V(sums[v]).store(lanes + v * V::kLanes);
  return sum_of<float>(kLanes, [&](int64_t j) { return lanes[j]; });
}
template <class F>
double exponentials(const double* row, int64_t width, double largest, double* weights) {
  for (int64_t j = 0; j < width; ++j) weights[j] = exp_of(row[j] - largest);
  return sum_of<double>(width, [=](int64_t j) { return weights[j]; });
}

/// weights[j] = exp(row[j] - sum) and slopes[j] = weights[j] * (slopes_in[j] - mean), 0 where the weight is; each may
/// replace what it is made of.
template <class F>
void slopes_of(const float* row, const float* slopes_in, int64_t width, float sum, float mean, F* weights, F* slopes) {
  using V = Vector<float>;
  const V low(static_cast<double>(sum)), middle(static_cast<double>(mean)), zero(0.0);
  for (int64_t j = 0; j < width; j += V::kLanes) {
    const V weight = weight_of<F>(V::load(row + j) - low);
    const V slope = weight * (V::load(slopes_in + j) - middle);
    store_rounded(weight, weights + j);
    store_rounded(select(weight == zero, zero, slope), slopes + j);
  }
}
inline void slopes_of(const double* row, const double* slopes_in, int64_t width, double sum, double mean,
                      double* weights, double* slopes) {
  for (int64_t j = 0; j < width; ++j) {
    const double weight = exp_of(row[j] - sum);
    slopes[j] = weight == 0 ? 0 : weight * (slopes_in[j] - mean);
    weights[j] = weight;
  }
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

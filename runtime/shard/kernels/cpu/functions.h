// Functions of one number that compilers can vectorise: branch-free, and equal in vector bodies and
// scalar tails. Functions of double use the C library. Formulas of whole vectors, with functions of
// SLEEF, are beside their kernels (transcendental.cc, activation.cc).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace shard::cpu {

/// `condition ? a : b` by bit masks: compilers turn a conditional on constants into branches, which
/// do not vectorise.
[[gnu::always_inline]] inline float select(bool condition, float a, float b) {
  const uint32_t mask = uint32_t{0} - static_cast<uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
}
inline double select(bool condition, double a, double b) { return condition ? a : b; }

/// 2^n for n in [-126, 127].
[[gnu::always_inline]] inline float power_of_two(uint32_t n) { return std::bit_cast<float>((n + 127u) << 23); }

/// factor * exp(x), within 2 ulp for x from 0 to -126, even where exp(x) alone is too small for a
/// float; 0 below. Infinite above 88.73.
[[gnu::always_inline]] inline float scaled_exp(float factor, float x) {
  x = select(x < -126.0f, -126.0f, x);
  x = select(x > 89.0f, 89.0f, x);
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // adding 1.5 * 2^23 rounds to the nearest integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const uint32_t whole = std::bit_cast<uint32_t>(shifted) - 0x4B400000u;
  // two factors, to reach the subnormals
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(whole) >> 1);
  return factor * p * power_of_two(half) * power_of_two(whole - half);
}
inline double scaled_exp(double factor, double x) {
  if (x > -700) return factor * std::exp(x);
  const double root = std::exp(0.5 * x);
  return factor * root * root;
}

/// exp(x), within 2 ulp; infinite above 88.73, 0 below -103.98, NaN for NaN.
[[gnu::always_inline]] inline float exp_of(float x) { return scaled_exp(1.0f, x); }
inline double exp_of(double x) { return std::exp(x); }

/// tanh(x), within 3 ulp.
[[gnu::always_inline]] inline float tanh_of(float x) {
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  const float e = exp_of(a + a);
  const float far = 1.0f - 2.0f / (e + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * a + a;
  const float magnitude = select(a < 0.625f, near, far);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (std::bit_cast<uint32_t>(x) & 0x80000000u));
}
inline double tanh_of(double x) { return std::tanh(x); }

/// 1 / (1 + exp(-x)) without overflow.
template <class C>
[[gnu::always_inline]] inline C sigmoid_of(C x) {
  const C e = exp_of(select(x < C(0), x, -x));
  const C numerator = select(x < C(0), e, C(1));
  return numerator / (C(1) + e);
}

/// A number in two parts: the smaller one holds what the larger one has no bits for. For a function
/// that grows like exp, a rounding of its argument becomes a large relative error of its result.
template <class C>
struct Split {
  C high;
  C low;
};

/// 1 / (1 + exp(-x)) and 1 / (1 + exp(x)), each without cancellation.
template <class C>
struct Logistic {
  C at;
  C rest;
};
template <class C>
[[gnu::always_inline]] inline Logistic<C> logistic_of(Split<C> x) {
  const bool below = x.high < C(0);
  const C e = exp_of(select(below, x.high, -x.high)) * (C(1) + select(below, x.low, -x.low));
  const C large = C(1) / (C(1) + e);
  const C small = e / (C(1) + e);
  return {select(below, small, large), select(below, large, small)};
}

/// factor / (1 + exp(-x)), even where the sigmoid alone is too small for a number.
template <class C>
[[gnu::always_inline]] inline C times_sigmoid(C factor, Split<C> x) {
  const bool below = x.high < C(0);
  const C far = select(below, x.high, -x.high);
  const C low = C(1) + select(below, x.low, -x.low);
  const C numerator = select(below, scaled_exp(factor, far) * low, factor);
  return numerator / (C(1) + exp_of(far) * low);
}

/// The maximum of `x` and `bound`: below the bound a function has reached 0, and infinities would
/// give NaN.
template <class C>
[[gnu::always_inline]] inline C at_least(C bound, C x) {
  return select(x < bound, bound, x);
}

/// x / (1 + exp(-x)), within 4 ulp.
[[gnu::always_inline]] inline float silu_of(float x) { return times_sigmoid(at_least(-126.0f, x), {x, 0.0f}); }
inline double silu_of(double x) { return times_sigmoid(at_least(-800.0, x), {at_least(-800.0, x), 0.0}); }

/// x^2 in two parts.
inline Split<double> square_of(double x) { return {x * x, std::fma(x, x, -(x * x))}; }

/// Values of the normal distribution N(0, 1) at x; those of floats are in vector_exp.h.
struct Normal {
  double bell;   // exp(-x^2 / 2)
  double below;  // P(N(0, 1) <= x)
  double times;  // x * below, even where below is too small for a number
};

/// Includes the parts of x / sqrt(2) and of x^2 that a double has no bits for: far from 0 they
/// change the tail considerably.
inline Normal normal_at(double x) {
  x = at_least(-40.0, x);
  const double near = -at_least(-40.0, -x);  // below is 1 outside
  const double w = near * -0.70710678118654752;
  const double low = std::fma(near, -0.70710678118654752, -w) + near * 4.8336466567264565e-17;
  const double slope = -1.1283791670955126 * std::exp(-w * w);  // of erfc
  const double below = 0.5 * (std::erfc(w) + slope * low);
  const Split<double> square = square_of(near);
  return {std::exp(-0.5 * square.high) * (1 - 0.5 * square.low), below, x * below};
}

/// Parts of the function x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x
/// (1 + tanh u) / 2 without its cancellation, for x where the result is neither x nor 0.
template <class C>
struct GeluTanh {
  C x;
  Split<C> twice_u;
  C slope;  // of 2 u
};
[[gnu::always_inline]] inline GeluTanh<float> gelu_tanh_at(float x) {
  x = at_least(-11.0f, -at_least(-11.0f, -x));
  const double wide = static_cast<double>(x);
  const double exact = wide * (1.5957691216057308 + 0.071354816272600250 * (wide * wide));
  const float high = static_cast<float>(exact);
  return {x, {high, static_cast<float>(exact - static_cast<double>(high))}, 1.5957691216f + 0.2140644488f * (x * x)};
}
inline GeluTanh<double> gelu_tanh_at(double x) {
  x = at_least(-23.0, -at_least(-23.0, -x));
  constexpr double kLinear = 1.5957691216057308, kCubic = 0.07135481627260025;
  constexpr double kLinearLow = -9.96930880911092e-17, kCubicLow = -6.175149918155315e-19;
  const Split<double> square = square_of(x);
  const double cubic = kCubic * square.high;
  const double cubic_low = std::fma(kCubic, square.high, -cubic) + kCubic * square.low + kCubicLow * square.high;
  const double sum = kLinear + cubic;
  const double rounding = (kLinear - (sum - cubic)) + (cubic - (sum - (sum - cubic)));
  const double product = x * sum;
  const double low = std::fma(x, sum, -product) + x * (rounding + cubic_low + kLinearLow);
  return {x, {product, low}, kLinear + 3 * kCubic * square.high};
}
template <class C>
[[gnu::always_inline]] inline C gelu_tanh_of(C x) {
  const GeluTanh<C> at = gelu_tanh_at(x);
  return times_sigmoid(at_least(at.x, x), at.twice_u);
}

}  // namespace shard::cpu

// Functions of one number that compilers can vectorise: branch-free, and equal in vector bodies and scalar tails.
// Functions of double use the C library. A new activation goes here, its kernel into unary.cc.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace shard::cpu {

/// `condition ? a : b` by masks: compilers turn a conditional on constants into branches, which do not vectorise.
[[gnu::always_inline]] inline float select(bool condition, float a, float b) {
  const uint32_t mask = uint32_t{0} - static_cast<uint32_t>(condition);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(a) & mask) | (std::bit_cast<uint32_t>(b) & ~mask));
}
inline double select(bool condition, double a, double b) { return condition ? a : b; }

/// 2^n for n in [-126, 127].
[[gnu::always_inline]] inline float power_of_two(uint32_t n) { return std::bit_cast<float>((n + 127u) << 23); }

/// exp(x), within 2 ulp; infinite above 88.73, 0 below -103.98, NaN for NaN.
[[gnu::always_inline]] inline float exp_of(float x) {
  x = select(x < -104.0f, -104.0f, x);
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
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(whole) >> 1);  // two factors reach the subnormals
  return p * power_of_two(half) * power_of_two(whole - half);
}
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

/// The normal distribution N(0, 1) at x.
template <class C>
struct Normal {
  C bell;   // exp(-x^2 / 2)
  C below;  // P(N(0, 1) <= x)
};

/// Within 4 ulp, small tails too; bell is 0 beyond 14.4.
[[gnu::always_inline]] inline Normal<float> normal_at(float x) {
  float a = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x7fffffffu);
  a = select(a > 15.0f, 15.0f, a);
  // a^2 in two parts, of which the larger is exact: a rounding of a^2 would be a relative error of the result.
  const float high = std::bit_cast<float>(std::bit_cast<uint32_t>(a) & 0xfffff000u);
  const float bell = exp_of(-0.5f * (high * high)) * exp_of(-0.5f * ((a - high) * (a + high)));
  // exp(w^2) erfc(w) (1 + 2 w) for w = a / sqrt(2) from 0 to 10.7, as a polynomial of (w - 3.25) / (w + 3.25); relative error 2.2e-8.
  const float w = a * 0.70710678118654752f;
  const float t = (w - 3.25f) / (w + 3.25f);
  float p = -1.2044837e-3f;
  p = p * t - 1.26659572e-5f;
  p = p * t + 1.025222e-2f;
  p = p * t - 3.69994184e-2f;
  p = p * t + 8.01260124e-2f;
  p = p * t - 1.18974462e-1f;
  p = p * t + 1.13509122e-1f;
  p = p * t - 2.74570281e-2f;
  p = p * t - 1.38611351e-1f;
  p = p * t + 1.24751512f;
  const float tail = 0.5f * (p / (1.0f + 2.0f * w)) * bell;
  return {bell, select(x < 0.0f, tail, 1.0f - tail)};
}
inline Normal<double> normal_at(double x) { return {std::exp(-0.5 * x * x), 0.5 * std::erfc(x * -0.70710678118654752)}; }

template <class C>
[[gnu::always_inline]] inline C gelu_tanh_of(C x) {
  const C inner = C(0.7978845608028654) * (x + C(0.044715) * x * x * x);
  return C(0.5) * x * (C(1) + tanh_of(inner));
}

}  // namespace shard::cpu

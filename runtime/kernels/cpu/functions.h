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

template <class C>
[[gnu::always_inline]] inline C gelu_tanh_of(C x) {
  const C inner = C(0.7978845608028654) * (x + C(0.044715) * x * x * x);
  return C(0.5) * x * (C(1) + tanh_of(inner));
}

}  // namespace shard::cpu

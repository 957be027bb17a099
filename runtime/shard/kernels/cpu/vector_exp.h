// exp and functions that are made of it - sigmoid, silu, tanh, erf, gelu - of vectors of float, by polynomials with fused
// multiply-add, for each .cc that compiles itself once per instruction set. As with SLEEF's functions, the bits are
// those of AVX2 and AVX-512 alike; the baseline has no fused multiply-add and may round differently.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_VECTOR_EXP_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_VECTOR_EXP_H
#undef SHARD_KERNELS_CPU_VECTOR_EXP_H
#else
#define SHARD_KERNELS_CPU_VECTOR_EXP_H
#endif

#include "hwy/highway.h"

#include "shard/kernels/cpu/vector_math.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

using Floats = Vector<float>;

/// a * b + c, rounded once where the instruction set can.
HWY_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return hn::MulAdd(a.lanes, b.lanes, c.lanes); }

/// The polynomial of x whose highest coefficient comes first.
template <class... Coefficient>
HWY_INLINE Floats polynomial(Floats x, double highest, Coefficient... coefficients) {
  Floats sum = highest;
  ((sum = multiply_add(sum, x, coefficients)), ...);
  return sum;
}

/// exp(x) as a fraction and two powers of two, which together reach the subnormals.
struct Power {
  Floats fraction, root, rest;

  /// factor * exp(x), even where exp(x) alone is too small for a float.
  HWY_INLINE Floats times(Floats factor) const { return factor * fraction * root * rest; }
  HWY_INLINE Floats value() const { return fraction * root * rest; }
};

/// exp(x + low) within 1 ulp, for x from -126 to 89 and a small low.
HWY_INLINE Power power_of_e(Floats x, Floats low) {
  const hn::RebindToSigned<Floats::Tag> integers;
  // Adding 1.5 * 2^23 rounds to the nearest integer.
  const Floats shifted = multiply_add(x + low, 1.44269504088896341, 12582912.0);
  const Floats n = shifted - 12582912.0;
  const Floats r = multiply_add(n, 2.12194440e-4, multiply_add(n, -0.693359375, x)) + low;
  const Floats p = polynomial(r, 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
                              5.0000001201e-1);
  const Floats fraction = multiply_add(p, r * r, r) + 1.0;
  const auto whole = hn::Sub(hn::BitCast(integers, shifted.lanes), hn::Set(integers, 0x4B400000));
  const auto root = hn::ShiftRight<1>(whole);
  const auto power_of_two = [&](auto exponent) {
    return Floats(hn::BitCast(Floats::Tag(), hn::ShiftLeft<23>(hn::Add(exponent, hn::Set(integers, 127)))));
  };
  return {fraction, power_of_two(root), power_of_two(hn::Sub(whole, root))};
}
HWY_INLINE Power power_of_e(Floats x) { return power_of_e(x, 0.0); }

/// max(x, bound), and NaN for NaN.
HWY_INLINE Floats limited_below(double bound, Floats x) { return select(x < Floats(bound), bound, x); }
HWY_INLINE Floats limited_above(double bound, Floats x) { return select(x > Floats(bound), bound, x); }

/// exp(x) within 1 ulp; infinite above 88.73, 0 below -103.98.
HWY_INLINE Floats fast_exp(Floats x) { return power_of_e(limited_above(89, limited_below(-126, x))).value(); }

/// exp(-|x|), which is 0 far from 0.
HWY_INLINE Power decay_of(Floats x) { return power_of_e(limited_below(-126, -abs(x))); }

/// 1 / (1 + exp(-x)) and 1 / (1 + exp(x)), each without cancellation.
struct BothSigmoids {
  Floats at, rest;
};
HWY_INLINE BothSigmoids both_sigmoids(Floats x) {
  const Floats e = decay_of(x).value();
  const Floats large = 1.0 / (1.0 + e), small = e * large;
  const auto below = x < Floats(0);
  return {select(below, small, large), select(below, large, small)};
}
HWY_INLINE Floats fast_sigmoid(Floats x) {
  const Floats e = decay_of(x).value();
  return select(x < Floats(0), e, 1.0) / (1.0 + e);
}
/// x / (1 + exp(-x)), even where the sigmoid alone is too small for a float.
HWY_INLINE Floats fast_silu(Floats x) {
  const Power e = decay_of(x);
  return select(x < Floats(0), e.times(limited_below(-126, x)), x) / (1.0 + e.value());
}

/// tanh(x) within 1.5 ulp: a polynomial near 0, and exp elsewhere.
HWY_INLINE Floats fast_tanh(Floats x) {
  const Floats size = abs(x), square = x * x;
  const Floats far = 1.0 - 2.0 / (power_of_e(limited_above(30, size + size)).value() + 1.0);
  const Floats p =
      polynomial(square, -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1);
  return copysign(select(size < Floats(0.625), multiply_add(p * square, size, size), far), x);
}

/// erf(x) within 1.5 ulp: a polynomial near 0, and 1 - exp(a polynomial) elsewhere, up to 4, where it is 1.
HWY_INLINE Floats fast_erf(Floats x) {
  const Floats size = limited_above(4, abs(x)), square = x * x;
  const Floats exponent = polynomial(size, -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1,
                                     -6.34846687e-1, -1.28717512e-1);
  const Floats far = 1.0 - power_of_e(multiply_add(exponent, size, -size)).value();
  const Floats slope =
      polynomial(square, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1);
  return select(size > Floats(0.927734375), copysign(far, x), multiply_add(slope, x, x));
}

/// The tail of the normal distribution N(0, 1) at a size: P(N(0, 1) > size) = mills * bell, where the bell is
/// exp(-size^2 / 2).
struct NormalTail {
  Floats size;  // |x|, at most 15, where the tail is 0
  Power bell;
  Floats mills;
};
HWY_INLINE NormalTail normal_tail(Floats x) {
  const Floats size = limited_above(15, abs(x));
  // The square in two parts, of which the larger is exact: a rounding of it would become a relative error of the bell.
  const hn::RebindToUnsigned<Floats::Tag> bits;
  const Floats high = hn::BitCast(Floats::Tag(), hn::And(hn::BitCast(bits, size.lanes), hn::Set(bits, 0xfffff000u)));
  const Power bell = power_of_e(-0.5 * (high * high), -0.5 * ((size - high) * (size + high)));
  // exp(w^2) erfc(w) / 2 for w = size / sqrt(2) is s = 1 / (1 + w / 3) times a polynomial of 1 - 2 s; relative error 2.3e-8.
  const Floats s = 1.0 / multiply_add(size, 0.23570226039551584, 1.0);
  const Floats p = polynomial(1.0 - (s + s), -5.380979928304441e-05, -7.974014442879707e-05, 0.0005135431420058012,
                              -0.00020482676336541772, -0.004473459906876087, 0.01992158405482769,
                              -0.051744308322668076, 0.09837137907743454, -0.14723241329193115, 0.17900115251541138);
  return {size, bell, s * p};
}
/// x P(N(0, 1) <= x) within 6 ulp, small tails too: a polynomial near 0, and the tail elsewhere.
HWY_INLINE Floats fast_gelu(Floats x) {
  const NormalTail tail = normal_tail(x);
  const Floats beyond = tail.bell.times(tail.size * tail.mills);
  const Floats slope = polynomial(x * x, -7.654207365703769e-06, 0.00011348637053743005, -0.0011863299878314137,
                                  0.009973322972655296, -0.06649035960435867, 0.3989422917366028);
  return select(tail.size < Floats(1), x * multiply_add(slope, x, 0.5), select(x < Floats(0), -beyond, x - beyond));
}
/// The derivative of gelu, P(N(0, 1) <= x) + x * the density at x, within 6 ulp of its larger term.
HWY_INLINE Floats fast_gelu_slope(Floats x) {
  const NormalTail tail = normal_tail(x);
  const Floats beyond = tail.bell.times(multiply_add(tail.size, -0.39894228040143268, tail.mills));
  const Floats slope = polynomial(x * x, 7.276809355971636e-06, -0.00011061414261348546, 0.001152506796643138,
                                  -0.009497979655861855, 0.05984123423695564, -0.26596152782440186, 0.7978845834732056);
  return select(tail.size < Floats(1), multiply_add(slope, x, 0.5), select(x < Floats(0), beyond, 1.0 - beyond));
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

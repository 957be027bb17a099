// CPU kernels of elementwise functions of one tensor with vector formulas: logarithms, hyperbolic
// and trigonometric functions, roundings, lgamma. The basic ones are in unary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/transcendental.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_exp.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE Vector<float> erf_of(Vector<float> x) { return fast_erf(x); }
HWY_INLINE Vector<double> erf_of(Vector<double> x) { return erf(x); }

#define SHARD_FORMULA(Name, formula) \
  struct Name {                      \
    template <class V>               \
    static HWY_INLINE V apply(V x) { \
      return formula;                \
    }                                \
  };

SHARD_FORMULA(Erf, erf_of(x))
SHARD_FORMULA(Expm1, expm1(x))
SHARD_FORMULA(Log2, log2(x))
SHARD_FORMULA(Log10, log10(x))
SHARD_FORMULA(Tan, tan(x))
SHARD_FORMULA(Asin, asin(x))
SHARD_FORMULA(Acos, acos(x))
SHARD_FORMULA(Atan, atan(x))
SHARD_FORMULA(Atanh, atanh(x))
SHARD_FORMULA(Floor, floor(x))
SHARD_FORMULA(Ceil, ceil(x))
SHARD_FORMULA(Trunc, trunc(x))
SHARD_FORMULA(Round, round(x))
SHARD_FORMULA(Reciprocal, 1.0 / x)
SHARD_FORMULA(Sign, select(x > V(0), V(1), select(x < V(0), V(-1), select(x == V(0), V(0), x))))

/// Above this number asinh and acosh are log(2 x) to the last bit, but x^2 may overflow in them.
constexpr double kLarge = 1e9;
constexpr double kLog2 = 0.69314718055994531;
struct Asinh {
  template <class V>
  static HWY_INLINE V apply(V x) {
    const V size = abs(x);
    return select(size > V(kLarge), copysign(log(size) + kLog2, x), asinh(x));
  }
};
struct Acosh {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return select(x > V(kLarge), log(x) + kLog2, acosh(x));
  }
};

/// Where SLEEF's log1p is infinite because x is large, it is log(x) to the last bit.
struct Log1p {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return select(x > V(1e17), log(x), log1p(x));
  }
};

/// exp overflows above this number, and SLEEF's sinh and cosh do, before exp(x) / 2 does.
template <class C>
constexpr double kLargeExponent = sizeof(C) == sizeof(float) ? 88 : 709;
template <class C>
HWY_INLINE Vector<C> safe_sinh(Vector<C> x) {
  using V = Vector<C>;
  const V size = abs(x), half = exp(0.5 * size);
  return select(size > V(kLargeExponent<C>), copysign((0.5 * half) * half, x), sinh(x));
}
template <class C>
HWY_INLINE Vector<C> safe_cosh(Vector<C> x) {
  using V = Vector<C>;
  const V size = abs(x), half = exp(0.5 * size);
  return select(size > V(kLargeExponent<C>), (0.5 * half) * half, cosh(x));
}
SHARD_FORMULA(Sinh, safe_sinh(x))
SHARD_FORMULA(Cosh, safe_cosh(x))
#undef SHARD_FORMULA

/// Where SLEEF's lgamma is infinite because x is large, it is x (log(x) - 1) to the last bit.
struct Lgamma {
  template <class V>
  static HWY_INLINE V apply(V x) {
    return select(x > V(1e30), x * (log(x) - 1.0), lgamma(x));
  }
};

/// log(x / (1 - x)) for x limited to [eps, 1 - eps]; with an eps of 0 NaN outside of [0, 1].
struct Logit {
  template <class V>
  static HWY_INLINE V apply(V x, const Numbers<V>& p) {
    const V high = 1.0 - p.first;
    const V low = select(x > high, high, x);
    const V near = select(p.first > V(0), select(low < p.first, p.first, low), x);
    return log(near / (1.0 - near));
  }
};
struct LogitGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g, const Numbers<V>& p) {
    const V slope = g / (x * (1.0 - x)), outside = select(p.first > V(0), V(0), V(NAN));
    return select(x < p.first, outside, select(x > 1.0 - p.first, outside, slope));
  }
};

// g is the gradient of the output.
#define SHARD_GRADIENT(Name, saved, formula)  \
  struct Name {                               \
    template <class V>                        \
    static HWY_INLINE V apply(V saved, V g) { \
      return formula;                         \
    }                                         \
  };

SHARD_GRADIENT(ErfGrad, x, g*(1.1283791670955126 * exp(-x * x)))
SHARD_GRADIENT(Expm1Grad, out, g* out + g)
SHARD_GRADIENT(Log1pGrad, x, g / (1.0 + x))
SHARD_GRADIENT(Log2Grad, x, g / (x * kLog2))
SHARD_GRADIENT(Log10Grad, x, g / (x * 2.3025850929940457))
SHARD_GRADIENT(AsinGrad, x, g / sqrt((1.0 - x) * (1.0 + x)))
SHARD_GRADIENT(AcosGrad, x, -g / sqrt((1.0 - x) * (1.0 + x)))
SHARD_GRADIENT(AtanGrad, x, g / (1.0 + x * x))
SHARD_GRADIENT(SinhGrad, x, g* safe_cosh(x))
SHARD_GRADIENT(CoshGrad, x, g* safe_sinh(x))
SHARD_GRADIENT(AtanhGrad, x, g / ((1.0 - x) * (1.0 + x)))
SHARD_GRADIENT(ReciprocalGrad, out, -g*(out* out))
#undef SHARD_GRADIENT

struct TanGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V c = cos(x);
    return g / (c * c);
  }
};
/// g / sqrt(x^2 + 1), where x^2 may overflow.
struct AsinhGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    const V size = abs(x);
    return select(size > V(kLarge), g / size, g / sqrt(x * x + 1.0));
  }
};
struct AcoshGrad {
  template <class V>
  static HWY_INLINE V apply(V x, V g) {
    return select(x > V(kLarge), g / x, g / sqrt((x - 1.0) * (x + 1.0)));
  }
};

void register_transcendental_for_target() {
  add_unary<Erf>("erf");
  add_unary<Expm1>("expm1");
  add_unary<Log1p>("log1p");
  add_unary<Log2>("log2");
  add_unary<Log10>("log10");
  add_unary<Tan>("tan");
  add_unary<Asin>("asin");
  add_unary<Acos>("acos");
  add_unary<Atan>("atan");
  add_unary<Sinh>("sinh");
  add_unary<Cosh>("cosh");
  add_unary<Asinh>("asinh");
  add_unary<Acosh>("acosh");
  add_unary<Atanh>("atanh");
  add_unary<Floor>("floor");
  add_unary<Ceil>("ceil");
  add_unary<Trunc>("trunc");
  add_unary<Round>("round");
  add_unary<Sign>("sign");
  add_unary<Reciprocal>("reciprocal");
  add_unary<Logit, float>("logit");
  add_unary<Lgamma>("lgamma");
  add_unary<Lgamma>("gammaln");
  add_binary<ErfGrad>("erf_grad");
  add_binary<Expm1Grad>("expm1_grad");
  add_binary<Log1pGrad>("log1p_grad");
  add_binary<Log2Grad>("log2_grad");
  add_binary<Log10Grad>("log10_grad");
  add_binary<TanGrad>("tan_grad");
  add_binary<AsinGrad>("asin_grad");
  add_binary<AcosGrad>("acos_grad");
  add_binary<AtanGrad>("atan_grad");
  add_binary<SinhGrad>("sinh_grad");
  add_binary<CoshGrad>("cosh_grad");
  add_binary<AsinhGrad>("asinh_grad");
  add_binary<AcoshGrad>("acosh_grad");
  add_binary<AtanhGrad>("atanh_grad");
  add_binary<ReciprocalGrad>("reciprocal_grad");
  add_binary<LogitGrad, float>("logit_grad");
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_transcendental_for_target);
void register_transcendental() { HWY_DYNAMIC_DISPATCH(register_transcendental_for_target)(); }
}  // namespace shard::cpu
#endif

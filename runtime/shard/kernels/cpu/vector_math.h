// Vectors of float and double that formulas treat as one number, and their transcendental functions
// by SLEEF, for each .cc that compiles itself once per instruction set.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_VECTOR_MATH_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_VECTOR_MATH_H
#undef SHARD_KERNELS_CPU_VECTOR_MATH_H
#else
#define SHARD_KERNELS_CPU_VECTOR_MATH_H
#endif

#include "hwy/highway.h"

#include <cmath>
#include <cstdint>

#include "shard/kernels/cpu/vector_functions.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A full vector of C, float or double. Numbers convert to it, so that `1.0 / (1.0 + exp(-x))` is a
/// formula of vectors.
template <class C>
struct Vector {
  using Element = C;
  using Tag = hn::ScalableTag<C>;
  using Mask = hn::Mask<Tag>;

  static constexpr int64_t kLanes = static_cast<int64_t>(HWY_LANES(C));

  hn::Vec<Tag> lanes;

  HWY_INLINE Vector(hn::Vec<Tag> value) : lanes(value) {}                              // NOLINT: converts
  HWY_INLINE Vector(double number) : lanes(hn::Set(Tag(), static_cast<C>(number))) {}  // NOLINT: converts

  static HWY_INLINE Vector load(const C* from) { return hn::LoadU(Tag(), from); }
  HWY_INLINE void store(C* to) const { hn::StoreU(lanes, Tag(), to); }

  friend HWY_INLINE Vector operator+(Vector a, Vector b) { return hn::Add(a.lanes, b.lanes); }
  friend HWY_INLINE Vector operator-(Vector a, Vector b) { return hn::Sub(a.lanes, b.lanes); }
  friend HWY_INLINE Vector operator*(Vector a, Vector b) { return hn::Mul(a.lanes, b.lanes); }
  friend HWY_INLINE Vector operator/(Vector a, Vector b) { return hn::Div(a.lanes, b.lanes); }
  friend HWY_INLINE Vector operator-(Vector a) { return hn::Neg(a.lanes); }
  friend HWY_INLINE Mask operator<(Vector a, Vector b) { return hn::Lt(a.lanes, b.lanes); }
  friend HWY_INLINE Mask operator>(Vector a, Vector b) { return hn::Gt(a.lanes, b.lanes); }
  friend HWY_INLINE Mask operator<=(Vector a, Vector b) { return hn::Le(a.lanes, b.lanes); }
  friend HWY_INLINE Mask operator>=(Vector a, Vector b) { return hn::Ge(a.lanes, b.lanes); }
  friend HWY_INLINE Mask operator==(Vector a, Vector b) { return hn::Eq(a.lanes, b.lanes); }

  friend HWY_INLINE Vector select(Mask condition, Vector a, Vector b) {
    return hn::IfThenElse(condition, a.lanes, b.lanes);
  }
  friend HWY_INLINE Vector abs(Vector x) { return hn::Abs(x.lanes); }
  friend HWY_INLINE Vector sqrt(Vector x) { return hn::Sqrt(x.lanes); }
  // Highway's roundings of the baseline lose the sign of a 0.
  friend HWY_INLINE Vector floor(Vector x) { return hn::CopySign(hn::Floor(x.lanes), x.lanes); }
  friend HWY_INLINE Vector ceil(Vector x) { return hn::CopySign(hn::Ceil(x.lanes), x.lanes); }
  friend HWY_INLINE Vector trunc(Vector x) { return hn::CopySign(hn::Trunc(x.lanes), x.lanes); }
  /// To even numbers where two are nearest.
  friend HWY_INLINE Vector round(Vector x) { return hn::CopySign(hn::Round(x.lanes), x.lanes); }
  friend HWY_INLINE Vector copysign(Vector size, Vector sign) { return hn::CopySign(size.lanes, sign.lanes); }
};

/// Where both conditions hold.
template <class Mask>
HWY_INLINE Mask both(Mask a, Mask b) {
  return hn::And(a, b);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3  // or a later one
namespace functions = avx3;
#elif HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
namespace functions = avx2;
#else  // the baseline and other processors: lane by lane
namespace scalar {
using namespace std;
// std::lgamma writes the sign of gamma into a variable of all threads.
inline float lgamma(float x) {
  int sign = 0;
  return ::lgammaf_r(x, &sign);
}
inline double lgamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}
}  // namespace scalar
namespace functions {
#define SHARD_DEFINE(name, ulps)                                                 \
  template <class C>                                                             \
  void name(const C* x, C* out) {                                                \
    for (int64_t i = 0; i < Vector<C>::kLanes; ++i) out[i] = scalar::name(x[i]); \
  }
#define SHARD_DEFINE_OF_TWO(name, ulps)                                                \
  template <class C>                                                                   \
  void name(const C* x, const C* y, C* out) {                                          \
    for (int64_t i = 0; i < Vector<C>::kLanes; ++i) out[i] = scalar::name(x[i], y[i]); \
  }
SHARD_VECTOR_FUNCTIONS(SHARD_DEFINE)
SHARD_VECTOR_FUNCTIONS_OF_TWO(SHARD_DEFINE_OF_TWO)
#undef SHARD_DEFINE
#undef SHARD_DEFINE_OF_TWO
}  // namespace functions
#endif

// log(x), ... for each of SHARD_VECTOR_FUNCTIONS.
#define SHARD_VECTOR_FUNCTION(name, ulps)                 \
  template <class C>                                      \
  HWY_INLINE Vector<C> name(Vector<C> x) {                \
    HWY_ALIGN C lanes[Vector<C>::kLanes];                 \
    hn::Store(x.lanes, typename Vector<C>::Tag(), lanes); \
    functions::name(lanes, lanes);                        \
    return hn::Load(typename Vector<C>::Tag(), lanes);    \
  }
#define SHARD_VECTOR_FUNCTION_OF_TWO(name, ulps)           \
  template <class C>                                       \
  HWY_INLINE Vector<C> name(Vector<C> x, Vector<C> y) {    \
    HWY_ALIGN C lanes[Vector<C>::kLanes];                  \
    HWY_ALIGN C others[Vector<C>::kLanes];                 \
    hn::Store(x.lanes, typename Vector<C>::Tag(), lanes);  \
    hn::Store(y.lanes, typename Vector<C>::Tag(), others); \
    functions::name(lanes, others, lanes);                 \
    return hn::Load(typename Vector<C>::Tag(), lanes);     \
  }
SHARD_VECTOR_FUNCTIONS(SHARD_VECTOR_FUNCTION)
SHARD_VECTOR_FUNCTIONS_OF_TWO(SHARD_VECTOR_FUNCTION_OF_TWO)
#undef SHARD_VECTOR_FUNCTION
#undef SHARD_VECTOR_FUNCTION_OF_TWO

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// CPU kernels of elementwise ops of one tensor and numbers: scale, clip, pow. Functions without
// numbers are in unary.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/scalar.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/core/convert.h"
#include "shard/kernels/bound.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"
#include "shard/kernels/cpu/vector_row.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

template <class C>
struct Pair {
  C first;
  C second;
};
template <class C>
constexpr Pair<C> kNoNumbers = {};

#include "shard/kernels/formulas/power.inc"
#include "shard/kernels/formulas/scalar.inc"

template <class Op, class T, class P>
void scalar_row(const Row& row) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(row.in[0]);
  T* out = static_cast<T*>(row.out);
  const Pair<P> params = *static_cast<const Pair<P>*>(row.params);
  for (int64_t i = 0, n = row.n; i < n; ++i)
    out[i] = static_cast<T>(Op::template apply<C>(static_cast<C>(x[i]), params));
}

template <class T>
void scale(const OpContext&, const DenseTensor& x, const Scalar& scale, const Scalar& bias, bool bias_after_scale,
           DenseTensor& out) {
  using C = Compute<T>;
  const Pair<C> params{scale.to<C>(), bias.to<C>()};
  run_unary(bias_after_scale ? &scalar_row<ScaleThenBias, T, C> : &scalar_row<BiasThenScale, T, C>, x, out, &params);
}

template <class T>
void increment(const OpContext&, const DenseTensor& x, float value, DenseTensor& out) {
  using C = Compute<T>;
  Pair<C> params{C(1), C(0)};
  if constexpr (std::is_integral_v<C>) params.second = static_cast<C>(convert<int64_t>(value));  // modulo 2^bits
  else params.second = static_cast<C>(value);
  run_unary(&scalar_row<ScaleThenBias, T, C>, x, out, &params);
}

template <class T>
void clip(const OpContext&, const DenseTensor& x, const Scalar& min, const Scalar& max, DenseTensor& out) {
  using C = Compute<T>;
  const Pair<C> params{bound<C>(min, true), bound<C>(max, false)};
  run_unary(&scalar_row<Clip, T, C>, x, out, &params);
}

template <class T>
void power(const OpContext&, const DenseTensor& x, const Scalar& y, DenseTensor& out) {
  using C = Compute<T>;
  if constexpr (is_float<T>) {
    const Numbers<C> exponent{y.to<C>(), C(0)};
    if (exponent.first == C(2)) return run_unary(&scalar_row<Square, T, C>, x, out, &kNoNumbers<C>);
    if (exponent.first == C(3)) return run_unary(&scalar_row<Cube, T, C>, x, out, &kNoNumbers<C>);
    run_unary(&vector_row<Pow, T, 0>, x, out, &exponent);
  } else {
    const Pair<int64_t> params{y.to<int64_t>(), 0};
    run_unary(&scalar_row<IntegerPow, T, int64_t>, x, out, &params);
  }
}

void register_scalar_for_target() {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("scale", kBackend, dtype_of<T>, &scale<T>);
    register_kernel("increment", kBackend, dtype_of<T>, &increment<T>);
    register_kernel("clip", kBackend, dtype_of<T>, &clip<T>);
    register_kernel("pow", kBackend, dtype_of<T>, &power<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_scalar_for_target);
void register_scalar() { HWY_DYNAMIC_DISPATCH(register_scalar_for_target)(); }
}  // namespace shard::cpu
#endif

// CPU kernels of sum, mean, max, min, prod, all, any and numel. argmax and cumsum are in scan.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/reduce.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/reduction.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

template <class T>
using ResultOfSum = std::conditional_t<is_float<T>, T, int64_t>;

struct Prod : OfElements<Prod> {
  template <class T>
  using Acc = SumOf<T>;
  template <class C>
  static C identity() {
    return C(1);
  }
  template <class C>
  static C combine(C a, C b) {
    return a * b;
  }
};

/// What truth values are combined in: bytes, so that std::vector holds plain elements.
template <class Reduction>
struct OfTruth : OfElements<Reduction> {
  template <class T>
  using Acc = uint8_t;
  template <class C, class T>
  static C term(T x, int64_t) {
    return static_cast<C>(static_cast<Compute<T>>(x) != Compute<T>(0));
  }
  template <class C>
  static Pack<C> terms(Pack<C> x, int64_t) {
    return pack_of<C>([&](int64_t j) { return static_cast<C>(x[j] != 0); });
  }
};
struct All : OfTruth<All> {
  template <class C>
  static C identity() {
    return C(1);
  }
  template <class C>
  static C combine(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct Any : OfTruth<Any> {
  template <class C>
  static C identity() {
    return C(0);
  }
  template <class C>
  static C combine(C a, C b) {
    return static_cast<C>(a | b);
  }
};

template <class Op, class T, class R>
void reduce(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, DenseTensor& out) {
  R* result = out.data<R>();
  reduce_all<T>(ctx, x, axis, Op(), [result](int64_t i, auto value) {
    if constexpr (is_half<T>) result[i] = R(static_cast<float>(value));
    else result[i] = static_cast<R>(value);
  });
}

/// The sum of the local shard divided by the number of elements of the whole tensor.
template <class T>
void mean(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, DenseTensor& out) {
  const double count = reduced_count(ctx, ctx.input_box(0, x).global, axis);
  T* result = out.data<T>();
  reduce_all<T>(ctx, x, axis, Sum(),
                [result, count](int64_t i, double value) { result[i] = rounded<T>(value / count); });
}

void numel(const OpContext& ctx, const DenseTensor& x, DenseTensor& size) {
  *size.data<int64_t>() = ctx.input_box(0, x).global.numel();
}

void register_reduce_for_target() {
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("sum", kBackend, dtype_of<T>, &reduce<Sum, T, ResultOfSum<T>>);
    register_kernel("prod", kBackend, dtype_of<T>, &reduce<Prod, T, ResultOfSum<T>>);
    register_kernel("max", kBackend, dtype_of<T>, &reduce<Max, T, T>);
    register_kernel("min", kBackend, dtype_of<T>, &reduce<Min, T, T>);
    register_kernel("amax", kBackend, dtype_of<T>, &reduce<Max, T, T>);
    register_kernel("amin", kBackend, dtype_of<T>, &reduce<Min, T, T>);
    register_kernel("all", kBackend, dtype_of<T>, &reduce<All, T, bool>);
    register_kernel("any", kBackend, dtype_of<T>, &reduce<Any, T, bool>);
  });
  register_for_all("numel", &numel);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("mean", kBackend, dtype_of<T>, &mean<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_reduce_for_target);
void register_reduce() { HWY_DYNAMIC_DISPATCH(register_reduce_for_target)(); }
}  // namespace shard::cpu
#endif

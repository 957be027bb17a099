// The row loop of elementwise ops of two tensors, for each .cc that compiles itself once per
// instruction set. The ops are in binary.cc and logic.cc.
// Highway's include guard: the file is included once for every target.
#if defined(SHARD_KERNELS_CPU_BINARY_ROW_H) == defined(HWY_TARGET_TOGGLE)
#ifdef SHARD_KERNELS_CPU_BINARY_ROW_H
#undef SHARD_KERNELS_CPU_BINARY_ROW_H
#else
#define SHARD_KERNELS_CPU_BINARY_ROW_H
#endif

#include "hwy/highway.h"

#include "shard/core/op_context.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {

/// out[i] = Op::apply(x[i], y[i]), with the elements converted to the type of arithmetic; either
/// side may be one number for the whole row.
template <class Op, class T, class R>
void binary_row(const Row& row) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(row.in[0]);
  const T* y = static_cast<const T*>(row.in[1]);
  R* out = static_cast<R*>(row.out);
  const int64_t n = row.n;
  if (row.step[0] != 0 && row.step[1] != 0) {
    for (int64_t i = 0; i < n; ++i)
      out[i] = static_cast<R>(Op::template apply<C>(static_cast<C>(x[i]), static_cast<C>(y[i])));
  } else if (row.step[0] != 0) {
    const C b = static_cast<C>(*y);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::template apply<C>(static_cast<C>(x[i]), b));
  } else {
    const C a = static_cast<C>(*x);
    const int64_t step = row.step[1];
    if (step == 0) *out = static_cast<R>(Op::template apply<C>(a, static_cast<C>(*y)));
    else
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::template apply<C>(a, static_cast<C>(y[i])));
  }
}

template <class Op, class T, class R>
void binary(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  run_binary(&binary_row<Op, T, R>, x, y, out);
}

}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

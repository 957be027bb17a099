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

#include <algorithm>
#include <type_traits>

#include "shard/core/op_context.h"
#include "shard/kernels/cpu/elementwise.h"
#include "shard/kernels/cpu/half_lines.h"
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
  if constexpr (std::is_same_v<T, float16> && std::is_same_v<R, T>) {  // compilers do not vectorise its conversions
    constexpr int64_t kBlock = 256;
    C a[kBlock], b[kBlock], results[kBlock];
    if (row.step[0] == 0) std::fill_n(a, std::min(n, kBlock), static_cast<C>(*x));
    if (row.step[1] == 0) std::fill_n(b, std::min(n, kBlock), static_cast<C>(*y));
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t size = std::min(n - i, kBlock);
      if (row.step[0] != 0) widen(x + i, size, a);
      if (row.step[1] != 0) widen(y + i, size, b);
      for (int64_t j = 0; j < size; ++j) results[j] = static_cast<C>(Op::template apply<C>(a[j], b[j]));
      narrow(results, size, out + i);
    }
    return;
  }
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

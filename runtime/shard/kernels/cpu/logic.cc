// CPU kernels of comparisons, and of logic on bits and truth values. Arithmetic on two tensors is
// in binary.cc.
#include <atomic>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/logic.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

template <class Op, class T, class R>
void unary(const OpContext&, const DenseTensor& x, DenseTensor& out) {
  run_unary(
      [](const Row& row) {
        const T* from = static_cast<const T*>(row.in[0]);
        R* to = static_cast<R*>(row.out);
        for (int64_t i = 0, n = row.n; i < n; ++i)
          to[i] = Op::template apply<Compute<T>>(static_cast<Compute<T>>(from[i]));
      },
      x, out);
}

template <class Op>
void add_question(const char* name) {
  for_types(AllTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &unary<Op, T, bool>); });
}

template <class Op>
void add_truth(const char* name) {
  for_types(AllTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, bool>); });
}

/// A bool has the bits of a byte that is 0 or 1.
template <class Op>
void add_bits(const char* name) {
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
  register_kernel(name, kBackend, DType::boolean, &binary<Op, uint8_t, uint8_t>);
}

#include "shard/kernels/formulas/logic.inc"

struct Closeness {
  double relative;
  double absolute;
  bool equal_nan;
};

#include "shard/kernels/formulas/closeness.inc"

/// For integers in double, in which their difference does not wrap.
template <class T>
bool is_close(T x, T y, const Closeness& limits) {
  using C = std::conditional_t<is_float<T>, Compute<T>, double>;
  return is_close(static_cast<C>(x), static_cast<C>(y), static_cast<C>(limits.relative),
                  static_cast<C>(limits.absolute), limits.equal_nan);
}

template <class T>
void isclose(const OpContext&, const DenseTensor& x, const DenseTensor& y, const Scalar& rtol, const Scalar& atol,
             bool equal_nan, DenseTensor& out) {
  const Closeness limits{rtol.to<double>(), atol.to<double>(), equal_nan};
  const RowLoop loop = [](const Row& row) {
    const T *a = static_cast<const T*>(row.in[0]), *b = static_cast<const T*>(row.in[1]);
    bool* to = static_cast<bool*>(row.out);
    for (int64_t i = 0; i < row.n; ++i)
      to[i] = is_close(a[i * row.step[0]], b[i * row.step[1]], *static_cast<const Closeness*>(row.params));
  };
  run_binary(loop, x, y, out, &limits);
}

template <class T>
void allclose(const OpContext&, const DenseTensor& x, const DenseTensor& y, const Scalar& rtol, const Scalar& atol,
              bool equal_nan, DenseTensor& out) {
  const Closeness limits{rtol.to<double>(), atol.to<double>(), equal_nan};
  std::atomic<bool> all = true;
  parallel_for(x.numel(), 2, [&](int64_t begin, int64_t end) {
    bool close = true;
    for (int64_t i = begin; i < end && close; ++i) close = is_close(x.data<T>()[i], y.data<T>()[i], limits);
    if (!close) all = false;
  });
  *out.data<bool>() = all;
}

template <class Arithmetic, class Logical, class T>
void shift(const OpContext&, const DenseTensor& x, const DenseTensor& y, bool is_arithmetic, DenseTensor& out) {
  run_binary(is_arithmetic ? &binary_row<Arithmetic, T, T> : &binary_row<Logical, T, T>, x, y, out);
}

void register_logic_for_target() {
  register_logic_formulas();
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("isclose", kBackend, dtype_of<T>, &isclose<T>);
    register_kernel("allclose", kBackend, dtype_of<T>, &allclose<T>);
  });
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("bitwise_left_shift", kBackend, dtype_of<T>, &shift<LeftShift, LeftShift, T>);
    register_kernel("bitwise_right_shift", kBackend, dtype_of<T>, &shift<RightShift, UnsignedRightShift, T>);
  });
  for_types(IntTypes{},
            [&]<class T>(TypeTag<T>) { register_kernel("bitwise_not", kBackend, dtype_of<T>, &unary<BitNot, T, T>); });
  register_kernel("bitwise_not", kBackend, DType::boolean, &unary<Not, bool, bool>);
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_logic_for_target);
void register_logic() { HWY_DYNAMIC_DISPATCH(register_logic_for_target)(); }
}  // namespace shard::cpu
#endif

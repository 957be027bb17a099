// CPU kernels of elementwise ops with two or three tensors. Ops with one tensor go to unary.cc, with numbers to scalar.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/binary.cc"
#include "kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/register.h"
#include "kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

struct Add {
  template <class C>
  static C apply(C a, C b) { return wrap_add(a, b); }
};
struct Subtract {
  template <class C>
  static C apply(C a, C b) { return wrap_sub(a, b); }
};
struct Multiply {
  template <class C>
  static C apply(C a, C b) { return wrap_mul(a, b); }
};
struct Divide {
  template <class C>
  static C apply(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) return a / b;
    else if constexpr (std::is_signed_v<C>) return b == -1 ? wrap_sub(C(0), a) : static_cast<C>(a / b);
    else return static_cast<C>(a / b);
  }
};
struct Maximum {
  template <class C>
  static C apply(C a, C b) { return nan_max(a, b); }
};
struct Minimum {
  template <class C>
  static C apply(C a, C b) { return nan_min(a, b); }
};
struct Equal {
  template <class C>
  static bool apply(C a, C b) { return a == b; }
};

template <class Op, class T, class R>
void binary_row(const Row& row) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(row.in[0]);
  const T* y = static_cast<const T*>(row.in[1]);
  R* out = static_cast<R*>(row.out);
  const int64_t n = row.n;
  if (row.step[0] != 0 && row.step[1] != 0) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::template apply<C>(static_cast<C>(x[i]), static_cast<C>(y[i])));
  } else if (row.step[0] != 0) {
    const C b = static_cast<C>(*y);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::template apply<C>(static_cast<C>(x[i]), b));
  } else {
    const C a = static_cast<C>(*x);
    const int64_t step = row.step[1];
    if (step == 0) *out = static_cast<R>(Op::template apply<C>(a, static_cast<C>(*y)));
    else for (int64_t i = 0; i < n; ++i) out[i] = static_cast<R>(Op::template apply<C>(a, static_cast<C>(y[i])));
  }
}

template <class Op, class T, class R>
void binary(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  run_binary(&binary_row<Op, T, R>, x, y, out);
}

/// Division by zero has no integer result; it is found before anything is written.
template <class T>
void divide_integers(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  const T* divisor = y.data<T>();
  for (int64_t i = 0, n = out.numel() == 0 ? 0 : y.numel(); i < n; ++i) {
    if (divisor[i] != 0) continue;
    fail(ErrorCode::invalid_argument, "[{}] y is {} and its element {} is 0, by which integers cannot be divided; cast to a float dtype",
         ctx.op, to_string(y.meta()), i);
  }
  run_binary(&binary_row<Divide, T, T>, x, y, out);
}

template <class T>
void where_row(const Row& row) {
  const bool* condition = static_cast<const bool*>(row.in[0]);
  const T* x = static_cast<const T*>(row.in[1]);
  const T* y = static_cast<const T*>(row.in[2]);
  T* out = static_cast<T*>(row.out);
  if (row.step[0] + row.step[1] + row.step[2] == 3) {
    for (int64_t i = 0; i < row.n; ++i) {
      const T a = x[i];
      const T b = y[i];
      out[i] = condition[i] ? a : b;
    }
    return;
  }
  for (int64_t i = 0; i < row.n; ++i) out[i] = condition[i * row.step[0]] ? x[i * row.step[1]] : y[i * row.step[2]];
}

template <class T>
void where(const OpContext&, const DenseTensor& condition, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  const DenseTensor* const inputs[] = {&condition, &x, &y};
  run_broadcast(&where_row<T>, inputs, out, nullptr);
}

template <class Op, class List>
void add_op(const char* name, List types) {
  for_types(types, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
}

void register_binary_here() {
  add_op<Add>("add", NumberTypes{});
  add_op<Subtract>("subtract", NumberTypes{});
  add_op<Multiply>("multiply", NumberTypes{});
  add_op<Divide>("divide", FloatTypes{});
  add_op<Maximum>("maximum", AllTypes{});
  add_op<Minimum>("minimum", AllTypes{});
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("divide", kBackend, dtype_of<T>, &divide_integers<T>); });
  for_types(AllTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("equal", kBackend, dtype_of<T>, &binary<Equal, T, bool>);
    register_kernel("where", kBackend, dtype_of<T>, &where<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_binary_here);
void register_binary() { HWY_DYNAMIC_DISPATCH(register_binary_here)(); }
}  // namespace shard::cpu
#endif

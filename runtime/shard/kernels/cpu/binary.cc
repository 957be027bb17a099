// CPU kernels of elementwise arithmetic on several tensors. Comparisons and logic are in logic.cc,
// ops with one tensor in unary.cc, ops with numbers in scalar.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/binary.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/core/independent.h"
#include "shard/kernels/cpu/binary_row.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/vector_row.h"
#include "shard/kernels/data_text.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

#include "shard/kernels/formulas/arithmetic.inc"
#include "shard/kernels/formulas/power.inc"

struct Maximum {
  template <class C>
  static HWY_INLINE C apply(C a, C b) {
    return Larger()(a, b);
  }
};
struct Minimum {
  template <class C>
  static HWY_INLINE C apply(C a, C b) {
    return Smaller()(a, b);
  }
};
struct Power {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return pow(a, b);
  }
};

struct Atan2 {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return atan2(a, b);
  }
};
struct Copysign {
  template <class V>
  static HWY_INLINE V apply(V a, V b) {
    return copysign(a, b);
  }
};
struct Lerp {
  template <class V>
  static HWY_INLINE V apply(V a, V b, V weight) {
    return a + weight * (b - a);
  }
};
/// Integer division by zero has no result; it is detected before anything is written.
template <class Op, class T>
void divide_integers(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  const T* divisor = y.data<T>();
  for (int64_t i = 0, n = out.numel() == 0 ? 0 : y.numel(); i < n; ++i) {
    if (divisor[i] != 0) continue;
    fail_check(ErrorCode::invalid_argument, "{}", zero_divisor_text(ctx.op, ArgumentPlace(ctx, 1, y), i));
  }
  run_binary(&binary_row<Op, T, T>, x, y, out);
}

/// out[i] = condition[i] ? x(i) : y(i), by bit masks: a branch on data is mispredicted, and does not vectorise.
template <class Bits, class X, class Y>
void select_row(const bool* condition, const X& x, const Y& y, Bits* out, int64_t n) {
  SHARD_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const Bits mask = static_cast<Bits>(-static_cast<Bits>(condition[i]));
    out[i] = static_cast<Bits>((x(i) & mask) | (y(i) & ~mask));
  }
}

/// Elements are copied as integers of their size.
template <class Bits>
void where_row(const Row& row) {
  const bool* const condition = static_cast<const bool*>(row.in[0]);
  const auto with = [&](size_t input, const auto& body) {
    const Bits* const from = static_cast<const Bits*>(row.in[input]);
    if (row.step[input] == 0) body([value = *from](int64_t) { return value; });
    else body([from](int64_t i) { return from[i]; });
  };
  Bits* const out = static_cast<Bits*>(row.out);
  if (row.step[0] == 0) {
    return with(*condition ? 1 : 2, [&](const auto& x) {
      for (int64_t i = 0; i < row.n; ++i) out[i] = x(i);
    });
  }
  with(1, [&](const auto& x) { with(2, [&](const auto& y) { select_row(condition, x, y, out, row.n); }); });
}

void where(const OpContext&, const DenseTensor& condition, const DenseTensor& x, const DenseTensor& y,
           DenseTensor& out) {
  const DenseTensor* const inputs[] = {&condition, &x, &y};
  const auto run = [&](RowLoop loop) { run_broadcast(loop, inputs, out, nullptr); };
  switch (size_of(x.dtype())) {
    case 1: return run(&where_row<uint8_t>);
    case 2: return run(&where_row<uint16_t>);
    case 4: return run(&where_row<uint32_t>);
    default: return run(&where_row<uint64_t>);
  }
}

template <class T>
void swiglu_row(const Row& row) {
  using C = Compute<T>;
  const T* x = static_cast<const T*>(row.in[0]);
  const T* y = static_cast<const T*>(row.in[1]);
  T* out = static_cast<T*>(row.out);
  for (int64_t i = 0; i < row.n; ++i) {
    const C gate = static_cast<C>(x[i]);
    out[i] = static_cast<T>(silu_of(gate) * static_cast<C>(y[i]));
  }
}

/// Without y each row of x holds the gates and then the values.
template <class T>
void swiglu(const OpContext&, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  if (y.defined()) return run_binary(&swiglu_row<T>, x, y, out);
  const int64_t width = out.dims()[out.dims().rank() - 1];
  parallel_for(width == 0 ? 0 : out.numel() / width, 4 * width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* gates = x.data<T>() + 2 * r * width;
      swiglu_row<T>({{gates, gates + width, nullptr}, {1, 1, 0}, out.data<T>() + r * width, width, nullptr});
    }
  });
}

/// Adds row by row in the order of the list; 16-bit floats are rounded once.
template <class T>
void add_n(const OpContext&, std::span<const DenseTensor> inputs, DenseTensor& out) {
  using C = Compute<T>;
  constexpr int64_t kBlock = 512;
  parallel_for((out.numel() + kBlock - 1) / kBlock, kBlock * static_cast<int64_t>(inputs.size()),
               [&](int64_t first, int64_t last) {
                 for (int64_t start = first * kBlock; start < std::min(last * kBlock, out.numel()); start += kBlock) {
                   const int64_t n = std::min(kBlock, out.numel() - start);
                   C sums[kBlock] = {};
                   for (const DenseTensor& input : inputs) {
                     const T* x = input.data<T>() + start;
                     for (int64_t i = 0; i < n; ++i) sums[i] = wrap_add(sums[i], static_cast<C>(x[i]));
                   }
                   for (int64_t i = 0; i < n; ++i) out.data<T>()[start + i] = static_cast<T>(sums[i]);
                 }
               });
}

template <class Op, class List>
void add_op(const char* name, List types) {
  for_types(types, [&]<class T>(TypeTag<T>) { register_kernel(name, kBackend, dtype_of<T>, &binary<Op, T, T>); });
}

void register_binary_for_target() {
  add_op<Add>("add", NumberTypes{});
  add_op<Subtract>("subtract", NumberTypes{});
  add_op<Multiply>("multiply", NumberTypes{});
  add_op<Divide>("divide", FloatTypes{});
  add_op<Maximum>("maximum", AllTypes{});
  add_op<Minimum>("minimum", AllTypes{});
  add_op<Remainder>("remainder", FloatTypes{});
  add_op<FloorDivide>("floor_divide", FloatTypes{});
  for_types(IntTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("divide", kBackend, dtype_of<T>, &divide_integers<Divide, T>);
    register_kernel("remainder", kBackend, dtype_of<T>, &divide_integers<Remainder, T>);
    register_kernel("floor_divide", kBackend, dtype_of<T>, &divide_integers<FloorDivide, T>);
  });
  add_op<Fmax>("fmax", NumberTypes{});
  add_op<Fmin>("fmin", NumberTypes{});
  add_op<Heaviside>("heaviside", NumberTypes{});
  add_binary<Atan2>("atan2");
  add_binary<Copysign>("copysign");
  add_ternary<Lerp>("lerp");
  add_op<IntegerPower>("elementwise_pow", IntTypes{});
  add_binary<Power>("elementwise_pow");
  register_for_all("where", &where);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("swiglu", kBackend, dtype_of<T>, &swiglu<T>); });
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) { register_kernel("add_n", kBackend, dtype_of<T>, &add_n<T>); });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_binary_for_target);
void register_binary() { HWY_DYNAMIC_DISPATCH(register_binary_for_target)(); }
}  // namespace shard::cpu
#endif

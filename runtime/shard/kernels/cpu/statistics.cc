// CPU kernels of logsumexp, var, std and norms of vectors. Where other ranks hold parts of what is reduced, all of them add up what they have.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/statistics.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <bit>
#include <cmath>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/reduction.h"
#include "shard/kernels/cpu/register.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// A double for each result.
DenseTensor doubles_of(const DenseTensor& out) { return DenseTensor::allocate(kCpu, {out.dims(), DType::float64}); }

/// Reduces x over axis to doubles, of all ranks that hold parts.
template <class T, class Op>
DenseTensor reduced(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, const DenseTensor& out,
                    const Op& op, ReduceType type) {
  DenseTensor numbers = doubles_of(out);
  double* const to = numbers.data<double>();
  reduce_all<T>(ctx, x, axis, op, [to](int64_t i, auto number) { to[i] = static_cast<double>(number); });
  ctx.all_reduce(numbers, type);
  return numbers;
}

/// Adds up f(x, number) of each element and the number of its result.
template <class F, class C>
struct SumAbout : Adding {
  const C* numbers;

  explicit SumAbout(const std::vector<C>& of_results) : numbers(of_results.data()) {}

  struct OfRow : Adding {
    C number;
    template <class A, class T>
    HWY_INLINE A term(T x, int64_t) const {
      return F()(static_cast<A>(x), number);
    }
    template <class A>
    HWY_INLINE Pack<A> terms(Pack<A> x, int64_t) const {
      return F()(x, number - Pack<A>{});
    }
  };
  struct OfColumns : Adding {
    const C* of;
    template <class A, class T>
    HWY_INLINE A term(T x, int64_t i) const {
      return F()(static_cast<A>(x), of[i]);
    }
    template <class A>
    HWY_INLINE Pack<A> terms(Pack<A> x, int64_t i) const {
      return F()(x, load_pack<A>(of + i));
    }
  };
  OfRow of_row(int64_t result) const { return {{}, numbers[result]}; }
  OfColumns of_columns(int64_t first) const { return {{}, numbers + first}; }
};

template <class C>
std::vector<C> narrowed(const DenseTensor& numbers) {
  const double* const from = numbers.data<double>();
  std::vector<C> result(static_cast<size_t>(numbers.numel()));
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<C>(from[i]);
  return result;
}

/// exp_of() of each number of a pack, bit for bit.
HWY_INLINE Pack<float> exp_of(Pack<float> x) {
  using Bits = Pack<uint32_t>;
  x = x < -126.0f ? Pack<float>{} - 126.0f : x;
  x = x > 89.0f ? Pack<float>{} + 89.0f : x;
  const Pack<float> shifted = x * 1.44269504088896341f + 12582912.0f, n = shifted - 12582912.0f;
  const Pack<float> r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Pack<float> p = Pack<float>{} + 1.9875691500e-4f;
  for (const float next : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + next;
  p = p * (r * r) + r + 1.0f;
  const Bits whole = std::bit_cast<Bits>(shifted) - 0x4B400000u;
  const Bits half = std::bit_cast<Bits>(std::bit_cast<Pack<int32_t>>(whole) >> 1);
  const auto power_of_two = [](Bits exponent) { return std::bit_cast<Pack<float>>((exponent + 127u) << 23); };
  return p * power_of_two(half) * power_of_two(whole - half);
}
HWY_INLINE Pack<double> exp_of(Pack<double> x) {
  return pack_of<double>([&](int64_t j) { return cpu::exp_of(static_cast<double>(x[j])); });
}

struct Exponential {
  template <class C>
  HWY_INLINE C operator()(C x, C largest) const {
    if constexpr (std::is_floating_point_v<C>) return cpu::exp_of(x - largest);
    else return exp_of(x - largest);
  }
};
struct SquaredDistance {
  template <class C>
  HWY_INLINE C operator()(C x, C mean) const {
    return (x - mean) * (x - mean);
  }
};

/// Exponentials are those of distances from the largest element, so that none overflows; from 0 where that is infinite.
template <class T>
void logsumexp(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, bool all, DenseTensor& out) {
  const IntArray along = all ? IntArray() : axis;
  DenseTensor largest = reduced<T>(ctx, x, along, out, Max(), ReduceType::max);
  double* const shifts = largest.data<double>();
  for (int64_t i = 0; i < out.numel(); ++i) shifts[i] = std::isinf(shifts[i]) ? 0 : shifts[i];
  const auto numbers = narrowed<Compute<T>>(largest);
  const DenseTensor sums = reduced<T>(ctx, x, along, out, SumAbout<Exponential, Compute<T>>(numbers), ReduceType::sum);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<T>()[i] = rounded<T>(std::log(sums.data<double>()[i]) + shifts[i]);
}
void logsumexp_dry(const OpContext& ctx, const DenseTensor&, const IntArray&, bool, bool, DenseTensor& out) {
  dry_all_reduce(ctx, {out.dims(), DType::float64}, ReduceType::max);
  dry_all_reduce(ctx, {out.dims(), DType::float64}, ReduceType::sum);
}

/// The sums of squared distances from the mean, divided by the number of elements, or by one less.
template <class T, bool root>
void variance(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool unbiased, bool, DenseTensor& out) {
  const double count = reduced_count(ctx, ctx.input_box(0, x).global, axis);
  DenseTensor means = reduced<T>(ctx, x, axis, out, Sum(), ReduceType::sum);
  for (int64_t i = 0; i < out.numel(); ++i) means.data<double>()[i] /= count;
  const auto numbers = narrowed<Compute<T>>(means);
  const DenseTensor squares =
      reduced<T>(ctx, x, axis, out, SumAbout<SquaredDistance, Compute<T>>(numbers), ReduceType::sum);
  const double divisor = unbiased && count > 0 ? std::max(count - 1, 1.0) : count;
  for (int64_t i = 0; i < out.numel(); ++i) {
    const double of_result = squares.data<double>()[i] / divisor;
    out.data<T>()[i] = rounded<T>(root ? std::sqrt(of_result) : of_result);
  }
}
void variance_dry(const OpContext& ctx, const DenseTensor&, const IntArray&, bool, bool, DenseTensor& out) {
  for (int sums = 0; sums < 2; ++sums) dry_all_reduce(ctx, {out.dims(), DType::float64}, ReduceType::sum);
}

/// Combines absolute values.
template <class How>
struct OfSizes : How {
  template <class C, class T>
  static HWY_INLINE C term(T x, int64_t) {
    return std::abs(static_cast<C>(x));
  }
  template <class C>
  static HWY_INLINE Pack<C> terms(Pack<C> x, int64_t) {
    return (x < 0 ? -x : x) + 0;  // which has no sign
  }
  static OfSizes of_row(int64_t) { return {}; }
  static OfSizes of_columns(int64_t) { return {}; }
};
struct CountOfNonzero : Adding, OfElements<CountOfNonzero> {
  template <class C, class T>
  static HWY_INLINE C term(T x, int64_t) {
    return static_cast<C>(static_cast<C>(x) != 0 ? 1 : 0);
  }
  template <class C>
  static HWY_INLINE Pack<C> terms(Pack<C> x, int64_t) {
    return x != 0 ? Pack<C>{} + 1 : Pack<C>{};
  }
};
struct SumOfSquares : Adding, OfElements<SumOfSquares> {
  template <class C, class T>
  static HWY_INLINE C term(T x, int64_t) {
    return static_cast<C>(x) * static_cast<C>(x);
  }
  template <class C>
  static HWY_INLINE Pack<C> terms(Pack<C> x, int64_t) {
    return x * x;
  }
};
struct SumOfPowers : Adding {
  double order;
  int whole;  // the order where it is a small whole number, else 0

  explicit SumOfPowers(double porder)
      : order(porder),
        whole(porder >= 1 && porder <= 16 && porder == std::floor(porder) ? static_cast<int>(porder) : 0) {}

  template <class C, class T>
  HWY_INLINE C term(T x, int64_t) const {
    const C size = std::abs(static_cast<C>(x));
    return whole > 0 ? product(size) : std::pow(size, static_cast<C>(order));
  }
  template <class C>
  HWY_INLINE Pack<C> terms(Pack<C> x, int64_t) const {
    const Pack<C> size = OfSizes<Adding>::template terms<C>(x, 0);
    if (whole > 0) return product(size);
    return pack_of<C>([&](int64_t j) { return std::pow(static_cast<C>(size[j]), static_cast<C>(order)); });
  }
  SumOfPowers of_row(int64_t) const { return *this; }
  SumOfPowers of_columns(int64_t) const { return *this; }

 private:
  template <class V>
  HWY_INLINE V product(V size) const {
    V power = size;
    for (int i = 1; i < whole; ++i) power = power * size;
    return power;
  }
};

template <class T>
DenseTensor reduced_sizes(const OpContext& ctx, const DenseTensor& x, double order, const IntArray& axis,
                          const DenseTensor& out) {
  if (order == 0) return reduced<T>(ctx, x, axis, out, CountOfNonzero(), ReduceType::sum);
  if (order == 1) return reduced<T>(ctx, x, axis, out, OfSizes<Adding>(), ReduceType::sum);
  if (order == 2) return reduced<T>(ctx, x, axis, out, SumOfSquares(), ReduceType::sum);
  if (!std::isinf(order)) return reduced<T>(ctx, x, axis, out, SumOfPowers(order), ReduceType::sum);
  if (order > 0) return reduced<T>(ctx, x, axis, out, OfSizes<KeepingLargest>(), ReduceType::max);
  return reduced<T>(ctx, x, axis, out, OfSizes<KeepingSmallest>(), ReduceType::min);
}

/// Of a negative order the norm of no elements is infinite.
double root_of(double total, double order) {
  if (order == 2) return std::sqrt(total);
  return order == 0 || order == 1 || std::isinf(order) ? total : std::pow(total, 1 / order);
}

template <class T>
void norm_of(const OpContext& ctx, const DenseTensor& x, double order, const IntArray& axis, DenseTensor& out) {
  const DenseTensor totals = reduced_sizes<T>(ctx, x, order, axis, out);
  for (int64_t i = 0; i < out.numel(); ++i) out.data<T>()[i] = rounded<T>(root_of(totals.data<double>()[i], order));
}

template <class T>
void p_norm(const OpContext& ctx, const DenseTensor& x, float porder, int axis, float, bool, bool asvector,
            DenseTensor& out) {
  norm_of<T>(ctx, x, porder, asvector ? IntArray() : IntArray{axis}, out);
}
void p_norm_dry(const OpContext& ctx, const DenseTensor&, float porder, int, float, bool, bool, DenseTensor& out) {
  const ReduceType type = !std::isinf(porder) ? ReduceType::sum : porder > 0 ? ReduceType::max : ReduceType::min;
  dry_all_reduce(ctx, {out.dims(), DType::float64}, type);
}

template <class T>
void frobenius_norm(const OpContext& ctx, const DenseTensor& x, const IntArray& axis, bool, bool all,
                    DenseTensor& out) {
  norm_of<T>(ctx, x, 2, all ? IntArray() : axis, out);
}
void frobenius_norm_dry(const OpContext& ctx, const DenseTensor&, const IntArray&, bool, bool, DenseTensor& out) {
  dry_all_reduce(ctx, {out.dims(), DType::float64}, ReduceType::sum);
}

/// Of the local shard: sums of others are pending.
template <class T>
void l1_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  reduce_all<T>(ctx, x, {}, OfSizes<Adding>(), [&](int64_t, double total) { *out.data<T>() = rounded<T>(total); });
}
template <class T>
void squared_l2_norm(const OpContext& ctx, const DenseTensor& x, DenseTensor& out) {
  reduce_all<T>(ctx, x, {}, SumOfSquares(), [&](int64_t, double total) { *out.data<T>() = rounded<T>(total); });
}

/// x over the root of its squares along axis.
template <class T>
void norm(const OpContext& ctx, const DenseTensor& x, int axis, float epsilon, bool, DenseTensor& out,
          DenseTensor& norm) {
  using C = Compute<T>;
  const DenseTensor squares = reduced<T>(ctx, x, {axis}, norm, SumOfSquares(), ReduceType::sum);
  std::vector<C> roots(static_cast<size_t>(norm.numel()));
  for (int64_t i = 0; i < norm.numel(); ++i) {
    const double root = std::sqrt(squares.data<double>()[i] + static_cast<double>(epsilon));
    roots[static_cast<size_t>(i)] = static_cast<C>(root);
    norm.data<T>()[i] = rounded<T>(root);
  }
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  if (view.inner == 1) {
    parallel_for(view.outer, view.size, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* const from = x.data<T>() + line * view.size;
        const C root = roots[static_cast<size_t>(line)];
        write_line(out.data<T>() + line * view.size, view.size,
                   [=](int64_t i) { return static_cast<C>(from[i]) / root; });
      }
    });
    return;
  }
  parallel_for(view.outer * view.size, view.inner, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* const from = x.data<T>() + row * view.inner;
      const C* const of = roots.data() + row / view.size * view.inner;
      write_line(out.data<T>() + row * view.inner, view.inner,
                 [=](int64_t i) { return static_cast<C>(from[i]) / of[i]; });
    }
  });
}
void norm_dry(const OpContext& ctx, const DenseTensor&, int, float, bool, DenseTensor&, DenseTensor& norm) {
  dry_all_reduce(ctx, {norm.dims(), DType::float64}, ReduceType::sum);
}

void register_statistics_for_target() {
  register_dry_kernel("norm", &norm_dry);
  register_dry_kernel("logsumexp", &logsumexp_dry);
  register_dry_kernel("var", &variance_dry);
  register_dry_kernel("std", &variance_dry);
  register_dry_kernel("p_norm", &p_norm_dry);
  register_dry_kernel("frobenius_norm", &frobenius_norm_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("logsumexp", kBackend, dtype_of<T>, &logsumexp<T>);
    register_kernel("var", kBackend, dtype_of<T>, &variance<T, false>);
    register_kernel("std", kBackend, dtype_of<T>, &variance<T, true>);
    register_kernel("p_norm", kBackend, dtype_of<T>, &p_norm<T>);
    register_kernel("frobenius_norm", kBackend, dtype_of<T>, &frobenius_norm<T>);
    register_kernel("squared_l2_norm", kBackend, dtype_of<T>, &squared_l2_norm<T>);
    register_kernel("norm", kBackend, dtype_of<T>, &norm<T>);
    register_kernel("l1_norm", kBackend, dtype_of<T>, &l1_norm<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_statistics_for_target);
void register_statistics() { HWY_DYNAMIC_DISPATCH(register_statistics_for_target)(); }
}  // namespace shard::cpu
#endif

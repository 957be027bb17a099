// CPU kernels of running functions along one axis besides sums: cumprod, cummax, cummin,
// logcumsumexp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/parts.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// The number by which elements are compared.
template <class T>
Compute<T> comparable(const T& value) {
  return static_cast<Compute<T>>(value);
}

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/running.inc"
#undef SHARD_FORMULA_INLINE

AxisView view_of(const OpContext& ctx, const DenseTensor& x, int axis) {
  return axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
}

/// The position of the first element of line i.
int64_t begin_of(const AxisView& view, int64_t i) { return i / view.inner * view.size * view.inner + i % view.inner; }

/// Calls body(i, begin) for each line along the axis, with the position of its first element.
template <class Body>
void for_lines(const AxisView& view, const Body& body) {
  parallel_for(view.outer * view.inner, view.size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) body(i, begin_of(view, i));
  });
}

/// Whether a is nearer to 0 than b; neither is 0.
bool is_below(const Scaled& a, const Scaled& b) {
  return a.exponent != b.exponent ? a.exponent < b.exponent : std::abs(a.mantissa) < std::abs(b.mantissa);
}

/// The product of a part of a line, and the running products in it that are the farthest from 0 and the nearest to it, of
/// those before the first one that is 0 or not finite.
struct Product {
  Scaled all, largest, smallest;
  /// 1 or -1 from the first running product on that is so far above the smallest, or below the largest, that no start keeps
  /// both within the range of a double: what starts within it has become 0, or infinite, before, or becomes infinite, or 0.
  int64_t beyond = 0;

  void multiply(double factor) {
    all = all.times(Scaled::of(factor));
    if (!all.is_number() || beyond != 0) return;
    constexpr int64_t kRange = 2100;  // more exponents than a double has, subnormal ones too
    if (all.exponent - smallest.exponent > kRange) beyond = 1;
    if (largest.exponent - all.exponent > kRange) beyond = -1;
    if (beyond != 0) return;
    if (is_below(largest, all)) largest = all;
    if (is_below(all, smallest)) smallest = all;
  }
  /// The product with that of the next part. One that becomes infinite or 0 on the way stays so.
  Product then(const Product& next) const {
    const Scaled start = !all.is_number() ? all
                         : std::isinf(all.times(next.largest).value())
                             ? Scaled{std::copysign(INFINITY, all.mantissa), 1}
                         : all.times(next.smallest).value() == 0 ? Scaled{std::copysign(0.0, all.mantissa), 1}
                         : next.beyond > 0                       ? Scaled{std::copysign(INFINITY, all.mantissa), 1}
                         : next.beyond < 0                       ? Scaled{std::copysign(0.0, all.mantissa), 1}
                                                                 : all;
    return {start.times(next.all), {}, {}, 0};
  }
  double value() const { return all.value(); }
};

/// A product of integers, which wraps.
template <class T>
struct WrappedProduct {
  T all = 1;

  void multiply(T factor) { all = wrap_mul(all, factor); }
  WrappedProduct then(const WrappedProduct& next) const { return {wrap_mul(all, next.all)}; }
  T value() const { return all; }
};

/// Where other ranks hold parts of the lines, products begin with those of the parts before.
template <class T>
void cumprod(const OpContext& ctx, const DenseTensor& x, int dim, DenseTensor& out) {
  using R = Running<T>;
  using Part = std::conditional_t<is_float<T>, Product, WrappedProduct<T>>;
  const AxisView view = view_of(ctx, x, dim);
  const auto factor = [&](int64_t begin, int64_t k) { return static_cast<R>(x.data<T>()[begin + k * view.inner]); };
  const auto total = [&](int64_t i) {
    Part product;
    for (int64_t k = 0; k < view.size; ++k) product.multiply(factor(begin_of(view, i), k));
    return product;
  };
  const std::vector<Part> before =
      before_part(ctx, view, false, Part(), total, [](const Part& a, const Part& b) { return a.then(b); });
  for_lines(view, [&](int64_t i, int64_t begin) {
    R product = before.empty() ? R(1) : before[static_cast<size_t>(i)].value();
    for (int64_t k = 0; k < view.size; ++k) {
      product = wrap_mul(product, factor(begin, k));
      out.data<T>()[begin + k * view.inner] = rounded<T>(product);
    }
  });
}

void cumprod_dry(const OpContext& ctx, const DenseTensor& x, int dim, DenseTensor&) {
  const AxisView view = view_of(ctx, x, dim);
  gather_parts_dry(ctx, view.outer * view.inner, is_floating(x.dtype()) ? sizeof(Product) : size_of(x.dtype()));
}

/// Before the first 0 of a line, an element times its gradient is the sum of out_grad * out from there on. The gradient of
/// that 0 has the products without it; what comes after it has no influence.
template <class T>
void cumprod_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out, const DenseTensor& out_grad,
                  int dim, DenseTensor& x_grad) {
  const AxisView view = view_of(ctx, x, dim);
  for_lines(view, [&](int64_t, int64_t begin) {
    const auto at = [&](const DenseTensor& tensor, int64_t k) {
      return static_cast<double>(static_cast<Compute<T>>(tensor.data<T>()[begin + k * view.inner]));
    };
    const auto set = [&](int64_t k, double value) { x_grad.data<T>()[begin + k * view.inner] = rounded<T>(value); };
    int64_t zero = 0;
    while (zero < view.size && at(x, zero) != 0) ++zero;
    double sum = 0;
    for (int64_t k = view.size - 1; k >= 0; --k) {
      sum += at(out_grad, k) * at(out, k);
      set(k, k < zero ? sum / at(x, k) : 0);
    }
    if (zero == view.size) return;
    double product = zero == 0 ? 1 : at(out, zero - 1), at_zero = 0;
    for (int64_t k = zero; k < view.size; ++k) {
      if (k > zero) product *= at(x, k);
      at_zero += at(out_grad, k) * product;
    }
    set(zero, at_zero);
  });
}

/// Where other ranks hold parts of the lines, a line begins with the best element of the parts before.
template <class T, class Replaces>
void running_best(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices,
                  const Replaces& replaces) {
  const AxisView view = view_of(ctx, x, axis);
  const Box box = ctx.input_box(0, x);
  const int64_t offset = x.dims().rank() == 0 ? 0 : box.begin[normalize_axis(ctx.op, "axis", axis, x.dims().rank())];
  const auto next = [&](Best<T> best, int64_t begin, int64_t k) {
    return best.then({offset + k, x.data<T>()[begin + k * view.inner]}, replaces);
  };
  const auto total = [&](int64_t i) {
    Best<T> best;
    for (int64_t k = 0; k < view.size; ++k) best = next(best, begin_of(view, i), k);
    return best;
  };
  const auto combine = [&](const Best<T>& a, const Best<T>& b) { return a.then(b, replaces); };
  const std::vector<Best<T>> before = before_part(ctx, view, false, Best<T>(), total, combine);
  for_lines(view, [&](int64_t i, int64_t begin) {
    Best<T> best = before.empty() ? Best<T>() : before[static_cast<size_t>(i)];
    for (int64_t k = 0; k < view.size; ++k) {
      best = next(best, begin, k);
      const int64_t at = begin + k * view.inner;
      out.data<T>()[at] = best.value;
      if (indices.dtype() == DType::int64) indices.data<int64_t>()[at] = best.index;
      else indices.data<int32_t>()[at] = static_cast<int32_t>(best.index);
    }
  });
}

/// The size of Best<T> does not depend on T.
void running_best_dry(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor&, DenseTensor&) {
  const AxisView view = view_of(ctx, x, axis);
  gather_parts_dry(ctx, view.outer * view.inner, sizeof(Best<double>));
}

template <class T>
void cummax(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  running_best<T>(ctx, x, axis, out, indices, NotBelow());
}

template <class T>
void cummin(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  running_best<T>(ctx, x, axis, out, indices, NotAbove());
}

/// Where other ranks hold parts of the lines, sums begin with those of the parts before.
template <class T>
void logcumsumexp(const OpContext& ctx, const DenseTensor& x, int axis, bool flatten, bool exclusive, bool reverse,
                  DenseTensor& out) {
  const AxisView view = flatten ? AxisView{1, x.numel(), 1} : view_of(ctx, x, axis);
  const auto total = [&](int64_t i) {
    double sum = lowest<double>();
    for (int64_t k = 0; k < view.size; ++k)
      sum = log_add(sum, static_cast<double>(x.data<T>()[begin_of(view, i) + k * view.inner]));
    return sum;
  };
  const std::vector<double> before = before_part(ctx, view, reverse, lowest<double>(), total, log_add);
  for_lines(view, [&](int64_t i, int64_t begin) {
    double sum = before.empty() ? lowest<double>() : before[static_cast<size_t>(i)];
    for (int64_t k = 0; k < view.size; ++k) {
      const int64_t at = begin + (reverse ? view.size - 1 - k : k) * view.inner;
      const double next = log_add(sum, static_cast<double>(x.data<T>()[at]));
      out.data<T>()[at] = rounded<T>(exclusive ? sum : next);
      sum = next;
    }
  });
}

void logcumsumexp_dry(const OpContext& ctx, const DenseTensor& x, int axis, bool flatten, bool, bool, DenseTensor&) {
  const AxisView view = flatten ? AxisView{1, x.numel(), 1} : view_of(ctx, x, axis);
  gather_parts_dry(ctx, view.outer * view.inner, sizeof(double));
}

}  // namespace

void register_running() {
  for (const char* op : {"cummax", "cummin"}) register_dry_kernel(op, &running_best_dry);
  register_dry_kernel("cumprod", &cumprod_dry);
  register_dry_kernel("logcumsumexp", &logcumsumexp_dry);
  for_types(AllTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("cummax", kBackend, dtype_of<T>, &cummax<T>);
    register_kernel("cummin", kBackend, dtype_of<T>, &cummin<T>);
  });
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) { register_kernel("cumprod", kBackend, dtype_of<T>, &cumprod<T>); });
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("cumprod_grad", kBackend, dtype_of<T>, &cumprod_grad<T>); });
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("logcumsumexp", kBackend, dtype_of<T>, &logcumsumexp<T>); });
}

}  // namespace shard::cpu

// CPU kernels of running functions along one axis besides sums: cumprod, cummax, cummin,
// logcumsumexp.
#include <cmath>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/parts.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

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

template <class T>
void cumprod(const OpContext& ctx, const DenseTensor& x, int dim, DenseTensor& out) {
  const AxisView view = view_of(ctx, x, dim);
  for_lines(view, [&](int64_t, int64_t begin) {
    Running<T> product = 1;
    for (int64_t k = 0; k < view.size; ++k) {
      const int64_t at = begin + k * view.inner;
      product = wrap_mul(product, static_cast<Running<T>>(x.data<T>()[at]));
      out.data<T>()[at] = rounded<T>(product);
    }
  });
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

/// The best element of a line so far, and its index in the whole line; -1 before the first one.
template <class T>
struct Best {
  int64_t index = -1;
  T value{};

  /// `replaces(value, best)`: whether an element takes the place of the best one before it. A NaN does, also that of
  /// another one.
  template <class Replaces>
  Best then(const Best& next, const Replaces& replaces) const {
    using C = Compute<T>;
    if (next.index < 0) return *this;
    const C value_next = static_cast<C>(next.value), value_here = static_cast<C>(value);
    return index < 0 || value_next != value_next || replaces(value_next, value_here) ? next : *this;
  }
};

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
  running_best<T>(ctx, x, axis, out, indices, [](auto value, auto best) { return value >= best; });
}

template <class T>
void cummin(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices) {
  running_best<T>(ctx, x, axis, out, indices, [](auto value, auto best) { return value <= best; });
}

/// log(exp(a) + exp(b)).
double log_add(double a, double b) {
  const double larger = std::max(a, b), smaller = std::min(a, b);
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return std::isinf(larger) ? larger : larger + std::log1p(std::exp(smaller - larger));
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

// CPU kernels of running functions along one axis besides sums: cumprod, cummax, cummin,
// logcumsumexp.
#include <cmath>

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {
namespace {

/// Running values of float are computed in double, so that long rows keep their accuracy.
template <class T>
using Running = std::conditional_t<is_float<T>, double, T>;

template <class T>
T rounded(Running<T> value) {
  if constexpr (is_half<T>) return T(static_cast<float>(value));
  else return static_cast<T>(value);
}

AxisView view_of(const OpContext& ctx, const DenseTensor& x, int axis) {
  return axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
}

/// Calls body(begin) for each line along the axis, with the position of its first element.
template <class Body>
void for_lines(const AxisView& view, const Body& body) {
  parallel_for(view.outer * view.inner, view.size, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) body(i / view.inner * view.size * view.inner + i % view.inner);
  });
}

template <class T>
void cumprod(const OpContext& ctx, const DenseTensor& x, int dim, DenseTensor& out) {
  const AxisView view = view_of(ctx, x, dim);
  for_lines(view, [&](int64_t begin) {
    Running<T> product = 1;
    for (int64_t k = 0; k < view.size; ++k) {
      const int64_t at = begin + k * view.inner;
      product = wrap_mul(product, static_cast<Running<T>>(x.data<T>()[at]));
      out.data<T>()[at] = rounded<T>(product);
    }
  });
}

/// `replaces(value, best)`: whether an element takes the place of the best one before it. A NaN
/// does, also that of another one.
template <class T, class Replaces>
void running_best(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out, DenseTensor& indices,
                  const Replaces& replaces) {
  using C = Compute<T>;
  const AxisView view = view_of(ctx, x, axis);
  for_lines(view, [&](int64_t begin) {
    int64_t best = 0;
    for (int64_t k = 0; k < view.size; ++k) {
      const auto value = static_cast<C>(x.data<T>()[begin + k * view.inner]);
      const auto before = static_cast<C>(x.data<T>()[begin + best * view.inner]);
      if (value != value || replaces(value, before)) best = k;
      const int64_t at = begin + k * view.inner;
      out.data<T>()[at] = x.data<T>()[begin + best * view.inner];
      if (indices.dtype() == DType::int64) indices.data<int64_t>()[at] = best;
      else indices.data<int32_t>()[at] = static_cast<int32_t>(best);
    }
  });
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

template <class T>
void logcumsumexp(const OpContext& ctx, const DenseTensor& x, int axis, bool flatten, bool exclusive, bool reverse,
                  DenseTensor& out) {
  const AxisView view = flatten ? AxisView{1, x.numel(), 1} : view_of(ctx, x, axis);
  for_lines(view, [&](int64_t begin) {
    double sum = lowest<double>();
    for (int64_t k = 0; k < view.size; ++k) {
      const int64_t at = begin + (reverse ? view.size - 1 - k : k) * view.inner;
      const double next = log_add(sum, static_cast<double>(x.data<T>()[at]));
      out.data<T>()[at] = rounded<T>(exclusive ? sum : next);
      sum = next;
    }
  });
}

}  // namespace

void register_running() {
  for_types(AllTypes{}, []<class T>(TypeTag<T>) {
    register_kernel("cummax", kBackend, dtype_of<T>, &cummax<T>);
    register_kernel("cummin", kBackend, dtype_of<T>, &cummin<T>);
  });
  for_types(NumberTypes{}, []<class T>(TypeTag<T>) { register_kernel("cumprod", kBackend, dtype_of<T>, &cumprod<T>); });
  for_types(FloatTypes{},
            []<class T>(TypeTag<T>) { register_kernel("logcumsumexp", kBackend, dtype_of<T>, &logcumsumexp<T>); });
}

}  // namespace shard::cpu

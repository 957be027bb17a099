// CPU kernels of softmax, of the losses built on it, of their labels, and of their gradients.
// Normalisations by mean and variance are in norm.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/softmax.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/data_check.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

/// Calls body(first element, i, step) for each of the outer * inner lines along the axis. Its
/// elements are `step` apart, a constant 1 where the axis is the last one, so that loops vectorise.
template <class Body>
void for_lines(const AxisView& view, const Body& body) {
  if (view.size == 0) return;
  parallel_for(view.outer * view.inner, 8 * view.size, [&](int64_t first, int64_t last) {
    if (view.inner == 1) {
      for (int64_t i = first; i < last; ++i) body(i * view.size, i, std::integral_constant<int64_t, 1>());
    } else {
      for (int64_t i = first; i < last; ++i)
        body(i / view.inner * view.size * view.inner + i % view.inner, i, view.inner);
    }
  });
}

template <class T>
struct LineSums {
  Compute<T> largest;
  double sum;  // of exp(x - largest)
};

constexpr int64_t kBlock = 512;  // elements that are added up in Compute<T>

template <class T, class Step>
Compute<T> largest_of(const T* x, int64_t size, Step step) {
  using C = Compute<T>;
  return fold(
      size, lowest<C>(), [=](int64_t k) { return static_cast<C>(x[k * step]); },
      [](C a, C b) { return nan_max(a, b); });
}

template <class T, class Step>
LineSums<T> sums_of(const T* x, int64_t size, Step step) {
  using C = Compute<T>;
  const C largest = largest_of(x, size, step);
  double sum = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const T* from = x + begin * step;
    sum += static_cast<double>(sum_of<C>(std::min(kBlock, size - begin),
                                         [=](int64_t k) { return exp_of(static_cast<C>(from[k * step]) - largest); }));
  }
  return {largest, sum};
}

/// `out` may be `x`. Where `out` has the type of arithmetic, each exponential is computed once and
/// stored there until the sum is known.
template <class T, class Step>
LineSums<T> softmax_line(const T* x, T* out, int64_t size, Step step) {
  using C = Compute<T>;
  if constexpr (std::is_same_v<T, C>) {
    const C largest = largest_of(x, size, step);
    double sum = 0;
    for (int64_t begin = 0; begin < size; begin += kBlock) {
      const int64_t count = std::min(kBlock, size - begin);
      const T* from = x + begin * step;
      T* to = out + begin * step;
#pragma GCC ivdep
      for (int64_t k = 0; k < count; ++k) to[k * step] = exp_of(from[k * step] - largest);
      sum += static_cast<double>(sum_of<C>(count, [=](int64_t k) { return to[k * step]; }));
    }
    const C total = static_cast<C>(sum);
    for (int64_t k = 0; k < size; ++k) out[k * step] /= total;
    return {largest, sum};
  } else {
    const LineSums<T> sums = sums_of(x, size, step);
    const C largest = sums.largest, total = static_cast<C>(sums.sum);
    for (int64_t k = 0; k < size; ++k) out[k * step] = T(exp_of(static_cast<C>(x[k * step]) - largest) / total);
    return sums;
  }
}

template <class T>
void softmax(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  for_lines(view, [&](int64_t at, int64_t, auto step) {
    softmax_line(x.data<T>() + at, out.data<T>() + at, view.size, step);
  });
}

template <class T>
void log_softmax(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  using C = Compute<T>;
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  for_lines(view, [&](int64_t at, int64_t, auto step) {
    const T* from = x.data<T>() + at;
    T* to = out.data<T>() + at;
    const LineSums<T> sums = sums_of(from, view.size, step);
    const C largest = sums.largest, total = static_cast<C>(std::log(sums.sum));
    for (int64_t k = 0, n = view.size; k < n; ++k) to[k * step] = T(static_cast<C>(from[k * step]) - largest - total);
  });
}

/// Each line has its own sum, computed before anything is written, because x_grad may be out_grad.
template <class T>
void softmax_grad(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
                  DenseTensor& x_grad) {
  using C = Compute<T>;
  const AxisView view = axis_view(out.dims(), normalize_axis(ctx.op, "axis", axis, out.dims().rank()));
  for_lines(view, [&](int64_t at, int64_t, auto step) {
    const T *y = out.data<T>() + at, *grad = out_grad.data<T>() + at;
    T* to = x_grad.data<T>() + at;
    const C total = static_cast<C>(sum_of<double>(view.size, [=](int64_t k) {
      return static_cast<double>(static_cast<C>(y[k * step])) * static_cast<double>(static_cast<C>(grad[k * step]));
    }));
    for (int64_t k = 0, n = view.size; k < n; ++k)
      to[k * step] = T(static_cast<C>(y[k * step]) * (static_cast<C>(grad[k * step]) - total));
  });
}

template <class T>
void log_softmax_grad(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
                      DenseTensor& x_grad) {
  using C = Compute<T>;
  const AxisView view = axis_view(out.dims(), normalize_axis(ctx.op, "axis", axis, out.dims().rank()));
  for_lines(view, [&](int64_t at, int64_t, auto step) {
    const T *y = out.data<T>() + at, *grad = out_grad.data<T>() + at;
    T* to = x_grad.data<T>() + at;
    const C total = static_cast<C>(
        sum_of<double>(view.size, [=](int64_t k) { return static_cast<double>(static_cast<C>(grad[k * step])); }));
    for (int64_t k = 0, n = view.size; k < n; ++k)
      to[k * step] = T(static_cast<C>(grad[k * step]) - exp_of(static_cast<C>(y[k * step])) * total);
  });
}

/// The classes are the last dim of the whole label.
template <class T>
void label_smooth(const OpContext& ctx, const DenseTensor& label, const DenseTensor& prior, float epsilon,
                  DenseTensor& out) {
  using C = Compute<T>;
  const Dims global = ctx.input_box(0, label).global;
  const int64_t width = label.dims()[label.dims().rank() - 1];
  const C keep = C(1) - static_cast<C>(epsilon),
          uniform = static_cast<C>(epsilon) / static_cast<C>(global[global.rank() - 1]);
  parallel_for(width == 0 ? 0 : label.numel() / width, 2 * width, [&](int64_t first, int64_t last) {
    for (int64_t i = first * width; i < last * width; ++i) {
      const C added = prior.defined() ? static_cast<C>(epsilon) * static_cast<C>(prior.data<T>()[i % width]) : uniform;
      out.data<T>()[i] = T(keep * static_cast<C>(label.data<T>()[i]) + added);
    }
  });
}

int64_t index_at(const DenseTensor& index, int64_t i) {
  return index.dtype() == DType::int64 ? index.data<int64_t>()[i] : index.data<int32_t>()[i];
}

/// `label` is input `input` of the op.
void check_labels(const OpContext& ctx, size_t input, const DenseTensor& label, int64_t classes, int ignore_index) {
  for (int64_t i = 0; i < label.numel(); ++i) {
    const int64_t value = index_at(label, i);
    if (value == ignore_index || (value >= 0 && value < classes)) continue;
    fail_check(
        ErrorCode::out_of_range,
        "[{}] label has the class {} at element {}, but there are {} classes and ignore_index is {} (label is {})",
        ctx.op, value, index_text(ctx, input, label, i), classes, ignore_index, global_text(ctx, input, label));
  }
}

/// -log of the probability of class k of a line.
template <class T>
double negative_log(const T* x, int64_t k, int64_t step, const LineSums<T>& sums, bool use_softmax) {
  const double value = static_cast<double>(static_cast<Compute<T>>(x[k * step]));
  return use_softmax ? std::log(sums.sum) - (value - static_cast<double>(sums.largest)) : -std::log(value);
}

template <class T>
void cross_entropy(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, bool soft_label,
                   bool use_softmax, bool, int ignore_index, int axis, DenseTensor& softmax_out, DenseTensor& loss) {
  const AxisView view = axis_view(input.dims(), normalize_axis(ctx.op, "axis", axis, input.dims().rank()));
  if (!soft_label) check_labels(ctx, 1, label, view.size, ignore_index);
  if (view.size == 0) std::fill_n(loss.data<T>(), loss.numel(), T(0.0f));
  for_lines(view, [&](int64_t at, int64_t line, auto step) {
    const T* from = input.data<T>() + at;
    T* to = softmax_out.data<T>() + at;
    LineSums<T> sums{};
    if (use_softmax) {
      sums = softmax_line(from, to, view.size, step);
    } else {
      for (int64_t k = 0; k < view.size; ++k) to[k * step] = from[k * step];
    }
    double result = 0;
    if (soft_label) {
      const T* weight = label.data<T>() + at;
      for (int64_t k = 0; k < view.size; ++k) {
        const double w = static_cast<double>(static_cast<Compute<T>>(weight[k * step]));
        if (w != 0) result += w * negative_log(from, k, step, sums, use_softmax);
      }
    } else if (const int64_t k = index_at(label, line); k != ignore_index) {
      result = negative_log(from, k, step, sums, use_softmax);
    }
    loss.data<T>()[line] = T(static_cast<Compute<T>>(result));
  });
}

/// The gradient of one line; `weight` returns the label's share of class k. With use_softmax x is p
/// = softmax(input), and d loss / d input = p * sum(weight) - weight; without, x is the input, and
/// the derivative of -weight * log(x) is -weight / x.
template <class T, class Step, class Weight>
void cross_entropy_line(const T* x, int64_t size, Step step, bool use_softmax, double sum_of_weights, double loss_grad,
                        const Weight& weight, T* to) {
  using C = Compute<T>;
  for (int64_t k = 0; k < size; ++k) {
    const double p = static_cast<double>(static_cast<C>(x[k * step])), w = weight(k);
    const double slope = use_softmax ? p * sum_of_weights - w : w == 0 ? 0 : -w / p;
    to[k * step] = T(static_cast<C>(slope * loss_grad));
  }
}

/// The classes of a hard label may be sharded: each rank knows its own classes.
template <class T>
void cross_entropy_grad(const OpContext& ctx, const DenseTensor& label, const DenseTensor& softmax_in,
                        const DenseTensor& loss_grad, bool soft_label, bool use_softmax, bool, int ignore_index,
                        int axis, DenseTensor& input_grad) {
  using C = Compute<T>;
  const int along = normalize_axis(ctx.op, "axis", axis, softmax_in.dims().rank());
  const AxisView view = axis_view(softmax_in.dims(), along);
  const Box box = ctx.input_box(1, softmax_in);
  if (!soft_label) check_labels(ctx, 0, label, box.global[along], ignore_index);
  for_lines(view, [&](int64_t at, int64_t line, auto step) {
    const T* from = softmax_in.data<T>() + at;
    T* to = input_grad.data<T>() + at;
    const double gradient = static_cast<double>(static_cast<C>(loss_grad.data<T>()[line]));
    if (soft_label) {
      const T* weights = label.data<T>() + at;
      const auto weight = [=](int64_t k) { return static_cast<double>(static_cast<C>(weights[k * step])); };
      double sum = 0;
      for (int64_t k = 0; k < view.size; ++k) sum += weight(k);
      return cross_entropy_line(from, view.size, step, use_softmax, sum, gradient, weight, to);
    }
    const int64_t value = index_at(label, line), mine = value - box.begin[along];
    const double kept = value == ignore_index ? 0 : 1;
    cross_entropy_line(
        from, view.size, step, use_softmax, kept, gradient, [=](int64_t k) { return k == mine ? kept : 0; }, to);
  });
}

void register_softmax_for_target() {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("softmax", kBackend, dtype_of<T>, &softmax<T>);
    register_kernel("log_softmax", kBackend, dtype_of<T>, &log_softmax<T>);
    register_kernel("label_smooth", kBackend, dtype_of<T>, &label_smooth<T>);
    register_kernel("cross_entropy_with_softmax", kBackend, dtype_of<T>, &cross_entropy<T>);
    register_kernel("softmax_grad", kBackend, dtype_of<T>, &softmax_grad<T>);
    register_kernel("log_softmax_grad", kBackend, dtype_of<T>, &log_softmax_grad<T>);
    register_kernel("cross_entropy_with_softmax_grad", kBackend, dtype_of<T>, &cross_entropy_grad<T>);
  });
}

}  // namespace
}  // namespace shard::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shard::cpu {
HWY_EXPORT(register_softmax_for_target);
void register_softmax() { HWY_DYNAMIC_DISPATCH(register_softmax_for_target)(); }
}  // namespace shard::cpu
#endif

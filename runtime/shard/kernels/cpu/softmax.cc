// CPU kernels of softmax, of the losses built on it, of their labels, and of their gradients.
// Normalisations by mean and variance are in norm.cc.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shard/kernels/cpu/softmax.cc"
#include "shard/kernels/cpu/targets.h"

#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "shard/core/independent.h"
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/fold.h"
#include "shard/kernels/cpu/functions.h"
#include "shard/kernels/cpu/half_lines.h"
#include "shard/kernels/cpu/index.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/register.h"
#include "shard/kernels/cpu/transpose.h"
#include "shard/kernels/cpu/value.h"

HWY_BEFORE_NAMESPACE();
namespace shard::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kRoom = 16384;  // elements of lines that are copied together, per cache line of a row

/// Calls body(lines, to, i, scratch) for each of the outer * inner lines along the axis: `lines` are
/// those of the tensors `in`, `to` is that of `out`, and `scratch` has room for a line in the type
/// of arithmetic. A line whose elements are apart is copied to and from a contiguous one, so that a
/// result does not depend on the distance. Without `out` nothing is written, and `to` is scratch.
template <class T, size_t count, class Body>
void for_lines(const AxisView& view, const std::array<const T*, count>& in, T* out, const Body& body) {
  if (view.size == 0 || view.inner == 0) return;
  const auto make_scratch = [&] {
    return std::make_unique_for_overwrite<Compute<T>[]>(is_half<T> ? size_t(view.size) : 0);
  };
  if (view.inner == 1) {
    parallel_for(view.outer, 8 * view.size, [&](int64_t first, int64_t last) {
      const auto scratch = make_scratch();
      for (int64_t i = first; i < last; ++i) {
        std::array<const T*, count> lines = in;
        for (const T*& line : lines) line += i * view.size;
        body(lines, out == nullptr ? nullptr : out + i * view.size, i, scratch.get());
      }
    });
    return;
  }
  // Lines are copied together in whole cache lines, in as many as the second-level cache has room for.
  constexpr int64_t kSide = 64 / sizeof(T);
  const int64_t strip = std::min(std::clamp(kRoom / view.size, int64_t{1}, int64_t{16}) * kSide, view.inner);
  const int64_t strips = (view.inner + strip - 1) / strip;
  const Store store = store_of(static_cast<size_t>(view.outer * view.size * view.inner) * sizeof(T));
  parallel_for(view.outer * strips, 16 * strip * view.size, [&](int64_t first, int64_t last) {
    const int64_t pitch = view.size + kSide;  // not a power of two, of which a cache holds few
    const auto memory = std::make_unique_for_overwrite<T[]>((count + 1) * size_t(strip * pitch));
    const auto scratch = make_scratch();
    T* const results = memory.get() + int64_t(count) * strip * pitch;
    for (int64_t job = first; job < last; ++job) {
      const int64_t column = job % strips * strip, n = std::min(strip, view.inner - column);
      const int64_t at = job / strips * view.size * view.inner + column;
      for (size_t k = 0; k < count; ++k)
        transpose_matrix(in[k] + at, view.inner, memory.get() + int64_t(k) * strip * pitch, pitch, view.size, n);
      for (int64_t j = 0; j < n; ++j) {
        std::array<const T*, count> lines;
        for (size_t k = 0; k < count; ++k) lines[k] = memory.get() + (int64_t(k) * strip + j) * pitch;
        body(lines, results + j * pitch, job / strips * view.inner + column + j, scratch.get());
      }
      if (out != nullptr) transpose_matrix(results, pitch, out + at, view.inner, n, view.size, store);
    }
  });
}

/// term(lines) of each line, added up over the ranks that hold the other parts of the lines. Empty
/// where there are none: then each line is whole, and its term need not be kept.
template <class T, size_t count, class Term>
std::vector<double> combined(const OpContext& ctx, const AxisView& view, const std::array<const T*, count>& in,
                             const Term& term) {
  if (ctx.reducer() == nullptr) return {};
  DenseTensor terms = DenseTensor::allocate(kCpu, {Dims{view.outer * view.inner}, DType::float64});
  double* const sums = terms.data<double>();
  std::fill_n(sums, terms.numel(), 0.0);
  for_lines<T, count>(view, in, nullptr, [&](const auto& lines, T*, int64_t i, Compute<T>*) { sums[i] = term(lines); });
  ctx.all_reduce(terms, ReduceType::sum);
  return {sums, sums + terms.numel()};
}

/// What dry calls of `combined` send.
void combined_dry(const OpContext& ctx, const DenseTensor& x, int axis, ReduceType type) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  dry_all_reduce(ctx, {Dims{view.outer * view.inner}, DType::float64}, type);
}

template <class T>
struct LineSums {
  Compute<T> largest;
  double sum;  // of exp(x - largest)
};

constexpr int64_t kBlock = 512;  // elements that are added up in Compute<T>

template <class C>
C largest_of(const C* x, int64_t size) {
  return fold(
      size, lowest<C>(), [=](int64_t k) { return x[k]; }, Larger());
}

template <class T>
LineSums<T> sums_of(const T* x, int64_t size) {
  using C = Compute<T>;
  const WideLine<T> line(x, size);
  const C largest = largest_of(line.get(), size);
  C terms[kBlock];  // a plain loop over exponentials is vectorised, one within a sum is not
  double sum = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const C* from = line.get() + begin;
    const int64_t count = std::min(kBlock, size - begin);
    for (int64_t k = 0; k < count; ++k) terms[k] = exp_of(from[k] - largest);
    sum += static_cast<double>(sum_of<C>(count, [&terms](int64_t k) { return terms[k]; }));
  }
  return {largest, sum};
}

/// The sums of lines of which other ranks hold parts: those of the parts, each scaled to the largest
/// number of all. Empty where lines are whole.
template <class T>
std::vector<LineSums<T>> combined_sums(const OpContext& ctx, const AxisView& view, const T* x) {
  if (ctx.reducer() == nullptr) return {};
  const Meta meta{Dims{view.outer * view.inner}, DType::float64};
  DenseTensor all_largest = DenseTensor::allocate(kCpu, meta), all_sums = DenseTensor::allocate(kCpu, meta);
  double *const largest = all_largest.data<double>(), *const sums = all_sums.data<double>();
  std::fill_n(largest, meta.numel(), -std::numeric_limits<double>::infinity());
  std::fill_n(sums, meta.numel(), 0.0);
  for_lines<T, 1>(view, {x}, nullptr, [&](const auto& lines, T*, int64_t i, Compute<T>*) {
    const LineSums<T> part = sums_of(lines[0], view.size);
    largest[i] = static_cast<double>(part.largest);
    sums[i] = part.sum;
    if (part.largest != lowest<Compute<T>>()) return;
    // All are -inf, which adds nothing to a sum that another part scales, or NaN is among them.
    const T* line = lines[0];
    const auto total = sum_of<Compute<T>>(view.size, [=](int64_t k) { return static_cast<Compute<T>>(line[k]); });
    sums[i] = total != total ? static_cast<double>(total) : 0;
  });
  const std::vector<double> mine(largest, largest + meta.numel());
  ctx.all_reduce(all_largest, ReduceType::max);
  for (size_t i = 0; i < mine.size(); ++i) {
    if (sums[i] != 0) sums[i] *= std::exp(mine[i] - largest[i]);
  }
  ctx.all_reduce(all_sums, ReduceType::sum);
  std::vector<LineSums<T>> result(mine.size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = {static_cast<Compute<T>>(largest[i]), sums[i]};
  return result;
}

/// `out` may be `x`. Each exponential is computed once, and is kept until the sum is known: in
/// `out`, or in `scratch` where `out` has 16 bits.
template <class T>
LineSums<T> softmax_line(const T* x, T* out, int64_t size, Compute<T>* scratch) {
  using C = Compute<T>;
  const C* numbers;
  C* kept;
  if constexpr (is_half<T>) {
    widen(x, size, scratch);
    numbers = kept = scratch;
  } else {
    numbers = x;
    kept = out;
  }
  const C largest = largest_of(numbers, size);
  double sum = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t count = std::min(kBlock, size - begin);
    const C* from = numbers + begin;
    C* to = kept + begin;
    SHARD_INDEPENDENT
    for (int64_t k = 0; k < count; ++k) to[k] = exp_of(from[k] - largest);
    sum += static_cast<double>(sum_of<C>(count, [=](int64_t k) { return to[k]; }));
  }
  const C total = static_cast<C>(sum);
  write_line(out, size, [=](int64_t k) { return kept[k] / total; });
  return {largest, sum};
}

/// The part of a line whose sums are known.
template <class T>
void softmax_part(const T* x, T* out, int64_t size, const LineSums<T>& sums) {
  using C = Compute<T>;
  const C largest = sums.largest, total = static_cast<C>(sums.sum);
  const WideLine<T> line(x, size);
  const C* const from = line.get();
  write_line(out, size, [=](int64_t k) { return exp_of(from[k] - largest) / total; });
}

template <class T>
void softmax(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  const std::vector<LineSums<T>> all = combined_sums(ctx, view, x.data<T>());
  for_lines<T, 1>(view, {x.data<T>()}, out.data<T>(), [&](const auto& lines, T* to, int64_t i, Compute<T>* scratch) {
    if (all.empty()) softmax_line(lines[0], to, view.size, scratch);
    else softmax_part(lines[0], to, view.size, all[static_cast<size_t>(i)]);
  });
}

template <class T>
void log_softmax(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  using C = Compute<T>;
  const AxisView view = axis_view(x.dims(), normalize_axis(ctx.op, "axis", axis, x.dims().rank()));
  const std::vector<LineSums<T>> all = combined_sums(ctx, view, x.data<T>());
  for_lines<T, 1>(view, {x.data<T>()}, out.data<T>(), [&](const auto& lines, T* to, int64_t i, Compute<T>*) {
    const T* from = lines[0];
    const LineSums<T> sums = all.empty() ? sums_of(from, view.size) : all[static_cast<size_t>(i)];
    const C largest = sums.largest, total = static_cast<C>(std::log(sums.sum));
    const WideLine<T> line(from, view.size);
    const C* const numbers = line.get();
    write_line(to, view.size, [=](int64_t k) { return numbers[k] - largest - total; });
  });
}

/// Each line has its own sum, computed before anything is written, because x_grad may be out_grad.
template <class T>
void softmax_grad(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
                  DenseTensor& x_grad) {
  using C = Compute<T>;
  const AxisView view = axis_view(out.dims(), normalize_axis(ctx.op, "axis", axis, out.dims().rank()));
  const auto sum_of_products = [&](const auto* y, const auto* grad) {
    return sum_of<double>(view.size, [=](int64_t k) {
      return static_cast<double>(static_cast<C>(y[k])) * static_cast<double>(static_cast<C>(grad[k]));
    });
  };
  const auto sum = [&](const std::array<const T*, 2>& lines) { return sum_of_products(lines[0], lines[1]); };
  const std::vector<double> all = combined<T, 2>(ctx, view, {out.data<T>(), out_grad.data<T>()}, sum);
  for_lines<T, 2>(view, {out.data<T>(), out_grad.data<T>()}, x_grad.data<T>(),
                  [&](const auto& lines, T* to, int64_t i, Compute<T>*) {
                    const WideLine<T> y_line(lines[0], view.size), grad_line(lines[1], view.size);
                    const C *y = y_line.get(), *grad = grad_line.get();
                    const C total =
                        static_cast<C>(all.empty() ? sum_of_products(y, grad) : all[static_cast<size_t>(i)]);
                    write_line(to, view.size, [=](int64_t k) { return y[k] * (grad[k] - total); });
                  });
}

template <class T>
void log_softmax_grad(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
                      DenseTensor& x_grad) {
  using C = Compute<T>;
  const AxisView view = axis_view(out.dims(), normalize_axis(ctx.op, "axis", axis, out.dims().rank()));
  const auto sum_of_elements = [&](const auto* grad) {
    return sum_of<double>(view.size, [=](int64_t k) { return static_cast<double>(static_cast<C>(grad[k])); });
  };
  const auto sum = [&](const auto& lines) { return sum_of_elements(lines.back()); };
  const std::vector<double> all = combined<T, 1>(ctx, view, {out_grad.data<T>()}, sum);
  for_lines<T, 2>(view, {out.data<T>(), out_grad.data<T>()}, x_grad.data<T>(),
                  [&](const auto& lines, T* to, int64_t i, Compute<T>*) {
                    const WideLine<T> y_line(lines[0], view.size), grad_line(lines[1], view.size);
                    const C *y = y_line.get(), *grad = grad_line.get();
                    const C total = static_cast<C>(all.empty() ? sum_of_elements(grad) : all[static_cast<size_t>(i)]);
                    write_line(to, view.size, [=](int64_t k) { return grad[k] - exp_of(y[k]) * total; });
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

/// `label` is input `input` of the op.
void check_labels(const OpContext& ctx, size_t input, const DenseTensor& label, int64_t classes, int ignore_index) {
  for (int64_t i = 0; i < label.numel(); ++i) {
    const int64_t value = integer_at(label, i);
    if (value == ignore_index || (value >= 0 && value < classes)) continue;
    fail_check(ErrorCode::out_of_range, "{}",
               class_outside_text(ctx.op, ArgumentPlace(ctx, input, label), i, value, classes, ignore_index));
  }
}

/// -log of the probability of class k of a line.
template <class T>
double negative_log(const T* x, int64_t k, const LineSums<T>& sums, bool use_softmax) {
  const double value = static_cast<double>(static_cast<Compute<T>>(x[k]));
  return use_softmax ? std::log(sums.sum) - (value - static_cast<double>(sums.largest)) : -std::log(value);
}

/// The classes may be sharded: sums of exponentials are combined, and the loss of a hard label is
/// that of the rank which has its class.
template <class T>
void cross_entropy(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, bool soft_label,
                   bool use_softmax, bool, int ignore_index, int axis, DenseTensor& softmax_out, DenseTensor& loss) {
  const int along = normalize_axis(ctx.op, "axis", axis, input.dims().rank());
  const AxisView view = axis_view(input.dims(), along);
  const Box box = ctx.input_box(0, input);
  if (!soft_label) check_labels(ctx, 1, label, box.global[along], ignore_index);
  std::vector<LineSums<T>> all;
  if (use_softmax) all = combined_sums(ctx, view, input.data<T>());
  DenseTensor losses = DenseTensor::allocate(kCpu, {Dims{view.outer * view.inner}, DType::float64});
  std::fill_n(losses.data<double>(), losses.numel(), 0.0);
  const auto line_loss = [&](const auto& lines, T* to, int64_t line, Compute<T>* scratch) {
    const T* from = lines.front();
    LineSums<T> sums{};
    if (!use_softmax) std::copy_n(from, view.size, to);
    else if (all.empty()) sums = softmax_line(from, to, view.size, scratch);
    else softmax_part(from, to, view.size, sums = all[static_cast<size_t>(line)]);
    double result = 0;
    if (soft_label) {
      const T* weight = lines.back();
      for (int64_t k = 0; k < view.size; ++k) {
        const double w = static_cast<double>(static_cast<Compute<T>>(weight[k]));
        if (w != 0) result += w * negative_log(from, k, sums, use_softmax);
      }
    } else if (const int64_t k = integer_at(label, line), mine = k - box.begin[along];
               k != ignore_index && mine >= 0 && mine < view.size) {
      result = negative_log(from, mine, sums, use_softmax);
    }
    losses.data<double>()[line] = result;
  };
  if (soft_label) for_lines<T, 2>(view, {input.data<T>(), label.data<T>()}, softmax_out.data<T>(), line_loss);
  else for_lines<T, 1>(view, {input.data<T>()}, softmax_out.data<T>(), line_loss);
  ctx.all_reduce(losses, ReduceType::sum);
  for (int64_t i = 0; i < loss.numel(); ++i) loss.data<T>()[i] = T(static_cast<Compute<T>>(losses.data<double>()[i]));
}

void cross_entropy_dry(const OpContext& ctx, const DenseTensor& input, const DenseTensor&, bool, bool use_softmax, bool,
                       int, int axis, DenseTensor&, DenseTensor&) {
  if (use_softmax) combined_dry(ctx, input, axis, ReduceType::max);
  if (use_softmax) combined_dry(ctx, input, axis, ReduceType::sum);
  combined_dry(ctx, input, axis, ReduceType::sum);
}

/// The gradient of one line; `weight` returns the label's share of class k. With use_softmax x is p
/// = softmax(input), and d loss / d input = p * sum(weight) - weight; without, x is the input, and
/// the derivative of -weight * log(x) is -weight / x.
template <class T, class Weight>
void cross_entropy_line(const T* x, int64_t size, bool use_softmax, double sum_of_weights, double loss_grad,
                        const Weight& weight, T* to) {
  using C = Compute<T>;
  const WideLine<T> line(x, size);
  const C* const numbers = line.get();
  write_line(to, size, [=](int64_t k) {
    const double p = static_cast<double>(numbers[k]), w = weight(k);
    const double slope = use_softmax ? p * sum_of_weights - w : w == 0 ? 0 : -w / p;
    return static_cast<C>(slope * loss_grad);
  });
}

/// The classes may be sharded: each rank knows its own, and the weights of soft labels are added up.
template <class T>
void cross_entropy_grad(const OpContext& ctx, const DenseTensor& label, const DenseTensor& softmax_in,
                        const DenseTensor& loss_grad, bool soft_label, bool use_softmax, bool, int ignore_index,
                        int axis, DenseTensor& input_grad) {
  using C = Compute<T>;
  const int along = normalize_axis(ctx.op, "axis", axis, softmax_in.dims().rank());
  const AxisView view = axis_view(softmax_in.dims(), along);
  const Box box = ctx.input_box(1, softmax_in);
  if (!soft_label) check_labels(ctx, 0, label, box.global[along], ignore_index);
  const auto sum_of_weights = [&](const auto& lines) {
    double sum = 0;
    for (int64_t k = 0; k < view.size; ++k) sum += static_cast<double>(static_cast<C>(lines.back()[k]));
    return sum;
  };
  std::vector<double> all;
  if (soft_label && use_softmax) all = combined<T, 1>(ctx, view, {label.data<T>()}, sum_of_weights);
  const auto line_grad = [&](const auto& lines, T* to, int64_t line, Compute<T>*) {
    const T* from = lines.front();
    const double gradient = static_cast<double>(static_cast<C>(loss_grad.data<T>()[line]));
    if (soft_label) {
      const T* weights = lines.back();
      const auto weight = [=](int64_t k) { return static_cast<double>(static_cast<C>(weights[k])); };
      const double sum = all.empty() ? sum_of_weights(lines) : all[static_cast<size_t>(line)];
      return cross_entropy_line(from, view.size, use_softmax, sum, gradient, weight, to);
    }
    const int64_t value = integer_at(label, line), mine = value - box.begin[along];
    const double kept = value == ignore_index ? 0 : 1;
    cross_entropy_line(
        from, view.size, use_softmax, kept, gradient, [=](int64_t k) { return k == mine ? kept : 0; }, to);
  };
  if (soft_label) for_lines<T, 2>(view, {softmax_in.data<T>(), label.data<T>()}, input_grad.data<T>(), line_grad);
  else for_lines<T, 1>(view, {softmax_in.data<T>()}, input_grad.data<T>(), line_grad);
}

/// The angles of the cosines at label, and what becomes of them.
struct Margins {
  double factor, angle, cosine;

  bool turns() const { return factor != 1 || angle != 0; }
  double with(double x) const { return (turns() ? std::cos(factor * std::acos(x) + angle) : x) - cosine; }
  double slope(double x) const {
    if (angle == 0 && x == 1) return factor * factor;  // the limit
    return turns() ? factor * std::sin(factor * std::acos(x) + angle) / std::sqrt((1 - x) * (1 + x)) : 1;
  }
};

/// The classes may be sharded, as in cross_entropy, which computes in the type of arithmetic here: what scale multiplies
/// must not be rounded.
template <class T>
void margin_cross_entropy(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label, bool, int, int,
                          int, float margin1, float margin2, float margin3, float scale, DenseTensor& softmax_out,
                          DenseTensor& loss) {
  using C = Compute<T>;
  const Box box = ctx.input_box(0, logits);
  check_indices(ctx, 1, "label", label, 0, box.global[1]);
  const Margins margins{margin1, margin2, margin3};
  const int64_t rows = logits.dims()[0], classes = logits.dims()[1];
  const C factor = static_cast<C>(scale);
  DenseTensor scaled = DenseTensor::allocate(kCpu, {logits.dims(), dtype_of<C>});
  parallel_for(rows, classes, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T* from = logits.data<T>() + i * classes;
      C* to = scaled.data<C>() + i * classes;
      for (int64_t k = 0; k < classes; ++k) to[k] = factor * static_cast<C>(from[k]);
      if (const int64_t mine = integer_at(label, i) - box.begin[1]; mine >= 0 && mine < classes)
        to[mine] = factor * static_cast<C>(margins.with(static_cast<double>(static_cast<C>(from[mine]))));
    }
  });
  const auto compute = [&](DenseTensor& to_softmax, DenseTensor& to_loss) {
    cross_entropy<C>(ctx, scaled, label, false, true, true, -1, 1, to_softmax, to_loss);
  };
  if constexpr (!is_half<T>) return compute(softmax_out, loss);
  DenseTensor wide_softmax = DenseTensor::allocate(kCpu, scaled.meta());
  DenseTensor wide_loss = DenseTensor::allocate(kCpu, {loss.dims(), dtype_of<C>});
  compute(wide_softmax, wide_loss);
  const auto narrow = [](const DenseTensor& wide, DenseTensor& out) {
    parallel_for(out.numel(), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) out.data<T>()[i] = T(wide.data<C>()[i]);
    });
  };
  narrow(wide_softmax, softmax_out);
  narrow(wide_loss, loss);
}

void margin_cross_entropy_dry(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label, bool, int, int,
                              int, float, float, float, float, DenseTensor& softmax_out, DenseTensor& loss) {
  cross_entropy_dry(ctx, logits, label, false, true, true, -1, 1, softmax_out, loss);
}

/// Each class has an independent gradient. logits_grad may be softmax.
template <class T>
void margin_cross_entropy_grad(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label,
                               const DenseTensor& softmax_in, const DenseTensor& loss_grad, bool, int, int, int,
                               float margin1, float margin2, float margin3, float scale, DenseTensor& logits_grad) {
  using C = Compute<T>;
  const Box box = ctx.input_box(0, logits);
  check_indices(ctx, 1, "label", label, 0, box.global[1]);
  const Margins margins{margin1, margin2, margin3};
  const int64_t rows = logits.dims()[0], classes = logits.dims()[1];
  parallel_for(rows, classes, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T* p = softmax_in.data<T>() + i * classes;
      T* to = logits_grad.data<T>() + i * classes;
      const C factor = static_cast<C>(scale) * static_cast<C>(loss_grad.data<T>()[i]);
      const int64_t mine = integer_at(label, i) - box.begin[1];
      const bool has_label = mine >= 0 && mine < classes;
      const C at_label = has_label ? static_cast<C>(p[mine]) : C(0);
      for (int64_t k = 0; k < classes; ++k) to[k] = T(static_cast<C>(p[k]) * factor);
      if (!has_label) continue;
      const double x = static_cast<double>(static_cast<C>(logits.data<T>()[i * classes + mine]));
      to[mine] = T(static_cast<C>(margins.slope(x)) * (at_label - 1) * factor);
    }
  });
}

void softmax_dry(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor&) {
  combined_dry(ctx, x, axis, ReduceType::max);
  combined_dry(ctx, x, axis, ReduceType::sum);
}

void softmax_grad_dry(const OpContext& ctx, const DenseTensor& out, const DenseTensor&, int axis, DenseTensor&) {
  combined_dry(ctx, out, axis, ReduceType::sum);
}

void cross_entropy_grad_dry(const OpContext& ctx, const DenseTensor&, const DenseTensor& softmax, const DenseTensor&,
                            bool soft_label, bool use_softmax, bool, int, int axis, DenseTensor&) {
  if (soft_label && use_softmax) combined_dry(ctx, softmax, axis, ReduceType::sum);
}

void register_softmax_for_target() {
  for (const char* op : {"softmax", "log_softmax"}) register_dry_kernel(op, &softmax_dry);
  for (const char* op : {"softmax_grad", "log_softmax_grad"}) register_dry_kernel(op, &softmax_grad_dry);
  register_dry_kernel("cross_entropy_with_softmax", &cross_entropy_dry);
  register_dry_kernel("cross_entropy_with_softmax_grad", &cross_entropy_grad_dry);
  register_dry_kernel("margin_cross_entropy", &margin_cross_entropy_dry);
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("softmax", kBackend, dtype_of<T>, &softmax<T>);
    register_kernel("log_softmax", kBackend, dtype_of<T>, &log_softmax<T>);
    register_kernel("label_smooth", kBackend, dtype_of<T>, &label_smooth<T>);
    register_kernel("cross_entropy_with_softmax", kBackend, dtype_of<T>, &cross_entropy<T>);
    register_kernel("softmax_grad", kBackend, dtype_of<T>, &softmax_grad<T>);
    register_kernel("log_softmax_grad", kBackend, dtype_of<T>, &log_softmax_grad<T>);
    register_kernel("cross_entropy_with_softmax_grad", kBackend, dtype_of<T>, &cross_entropy_grad<T>);
    register_kernel("margin_cross_entropy", kBackend, dtype_of<T>, &margin_cross_entropy<T>);
    register_kernel("margin_cross_entropy_grad", kBackend, dtype_of<T>, &margin_cross_entropy_grad<T>);
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

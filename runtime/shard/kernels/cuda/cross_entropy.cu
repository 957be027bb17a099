// Cross entropies of softmax and their gradients on CUDA, along any axis: with labels of classes or of weights, and with margins.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/labels.cuh"
#include "shard/kernels/cuda/softmax.cuh"
#include "shard/kernels/device_work.h"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

/// What makes an element of a line the -log of its probability.
template <class M>
struct NegativeLog {
  M maximum, log_sum;
  bool use_softmax;

  __device__ M operator()(M x) const { return use_softmax ? log_sum - (x - maximum) : -log(x); }
};

/// Writes the probabilities of a line, which are those given unless `use_softmax`.
template <class T, class Line>
__device__ NegativeLog<math_t<T>> write_probabilities(const Line& line, T* out, bool use_softmax,
                                                      const LineTotals& totals = {}) {
  using M = math_t<T>;
  if (!use_softmax) {
    line.write(out, [](int64_t, const auto& x) { return x[0]; });
    return {0, 0, false};
  }
  const Exponentials<M> all = totals.of(line);
  const M scale = M(1) / all.sum;
  line.write(out, [&](int64_t, const auto& x) { return exp(x[0] - all.maximum) * scale; });
  return {all.maximum, static_cast<M>(log(all.sum)), true};
}

/// The losses of lines: of the dtype of the result, or the parts of this rank as doubles, which are added up over ranks.
template <class T>
struct Losses {
  T* whole;
  double* parts;

  __device__ void set(int64_t line, math_t<T> loss) const {
    if (parts != nullptr) parts[line] = static_cast<double>(loss);
    else whole[line] = store<T>(loss);
  }
};

/// With a class for each line.
template <class T>
struct CrossEntropy {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;
  Losses<T> losses;
  bool use_softmax;
  LineTotals totals;
  Indices label;
  int64_t first_class;  // of those that this rank has
  ClassCheck check;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const NegativeLog<M> negative_log = write_probabilities(line, out, use_softmax, totals);
    if (!line.leads()) return;
    const int64_t value = label[line.index], mine = value - first_class;
    const bool counts = check.admits(line.index, value) && mine >= 0 && mine < line.size;
    losses.set(line.index, counts ? negative_log(line.element(0, mine)) : M(0));
  }
};

/// With a weight for each element: input 1.
template <class T>
struct SoftCrossEntropy {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;
  Losses<T> losses;
  bool use_softmax;
  LineTotals totals;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const NegativeLog<M> negative_log = write_probabilities(line, out, use_softmax, totals);
    M sum = 0;
    line.each([&](int64_t, const auto& v) {
      if (v[1] != 0) sum += v[1] * negative_log(v[0]);
    });
    sum = line.reduce(sum, Plus{});
    if (line.leads()) losses.set(line.index, sum);
  }
};

template <class T>
void cross_entropy(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, bool soft_label,
                   bool use_softmax, bool, int ignore_index, int axis, DenseTensor& softmax_out, DenseTensor& loss) {
  using D = device_t<T>;
  const LineShape shape = line_shape(ctx, input.dims(), axis);
  const int along = normalize_axis(ctx.op, "axis", axis, input.dims().rank());
  const Box box = ctx.input_box(0, input);
  const DeviceScope scope(loss.device().index);
  const D* const x = elements<const D>(input);
  D* const out = elements<D>(softmax_out);
  const CombinedLines all = use_softmax ? combine_lines<D>(ctx, input, shape) : CombinedLines();
  const DenseTensor parts = ctx.reducer() == nullptr ? DenseTensor() : numbers_of_lines(loss, shape.lines());
  const Losses<D> losses{elements<D>(loss), parts.defined() ? parts.data<double>() : nullptr};
  if (soft_label) {
    const D* const weights = elements<const D>(label);
    launch_lines(ctx, SoftCrossEntropy<D>{{x, weights}, out, losses, use_softmax, all.totals()}, shape);
  } else if (loss.numel() != 0) {
    const ClassCheck check(ctx, 1, label, box.global[along], ignore_index, class_outside_text);
    launch_lines(ctx,
                 CrossEntropy<D>{{x}, out, losses, use_softmax, all.totals(), Indices(label), box.begin[along], check},
                 shape);
  }
  if (!parts.defined()) return;
  DenseTensor total = parts;
  ctx.all_reduce(total, ReduceType::sum);
  device_work(loss.device())
      ->convert_floats(loss.device().index, loss.raw(), loss.dtype(), total.raw(), DType::float64, loss.numel());
}

/// What multiplies the gradient of a loss, where x is the probability or, unless `use_softmax`, the input.
template <class M>
__device__ M cross_entropy_slope(M x, M weight, M sum_of_weights, bool use_softmax) {
  return use_softmax ? x * sum_of_weights - weight : weight == 0 ? M(0) : -weight / x;
}

template <class T>
struct CrossEntropyGrad {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;
  const T* loss_grad;
  bool use_softmax;
  Indices label;
  int64_t first_class;  // of those that this rank has
  ClassCheck check;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const int64_t value = label[line.index], mine = value - first_class;
    const bool counts = line.leads() ? check.admits(line.index, value) : check.is_class(value);
    const M kept = counts ? M(1) : M(0), gradient = load(loss_grad[line.index]);
    line.write(out, [&](int64_t i, const auto& v) {
      return cross_entropy_slope(v[0], i == mine ? kept : M(0), kept, use_softmax) * gradient;
    });
  }
};

template <class T>
struct SoftCrossEntropyGrad {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;
  const T* loss_grad;
  bool use_softmax;
  const double* sums;  // of the weights of lines of which other ranks hold parts, or null

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    M sum = 0;
    if (sums != nullptr) {
      sum = static_cast<M>(sums[line.index]);
    } else if (use_softmax) {
      line.each([&](int64_t, const auto& v) { sum += v[1]; });
      sum = line.reduce(sum, Plus{});
    }
    const M gradient = load(loss_grad[line.index]);
    line.write(out,
               [&](int64_t, const auto& v) { return cross_entropy_slope(v[0], v[1], sum, use_softmax) * gradient; });
  }
};

template <class T>
struct SumsOfWeights {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  double* sums;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    math_t<T> sum = 0;
    line.each([&](int64_t, const auto& v) { sum += v[0]; });
    sum = line.reduce(sum, Plus{});
    if (line.leads()) sums[line.index] = static_cast<double>(sum);
  }
};

template <class T>
void cross_entropy_grad(const OpContext& ctx, const DenseTensor& label, const DenseTensor& softmax_in,
                        const DenseTensor& loss_grad, bool soft_label, bool use_softmax, bool, int ignore_index,
                        int axis, DenseTensor& input_grad) {
  using D = device_t<T>;
  const LineShape shape = line_shape(ctx, softmax_in.dims(), axis);
  const int along = normalize_axis(ctx.op, "axis", axis, softmax_in.dims().rank());
  const Box box = ctx.input_box(1, softmax_in);
  const DeviceScope scope(input_grad.device().index);
  DenseTensor sums;
  if (soft_label && use_softmax && ctx.reducer() != nullptr) {
    sums = numbers_of_lines(label, shape.lines());
    launch_lines(ctx, SumsOfWeights<D>{{elements<const D>(label)}, nullptr, sums.data<double>()}, shape);
    ctx.all_reduce(sums, ReduceType::sum);
  }
  if (loss_grad.numel() == 0) return;
  const D *const x = elements<const D>(softmax_in), *const grads = elements<const D>(loss_grad);
  D* const out = elements<D>(input_grad);
  if (soft_label) {
    const D* const weights = elements<const D>(label);
    const double* const totals = sums.defined() ? sums.data<double>() : nullptr;
    return launch_lines(ctx, SoftCrossEntropyGrad<D>{{x, weights}, out, grads, use_softmax, totals}, shape);
  }
  const ClassCheck check(ctx, 0, label, box.global[along], ignore_index, class_outside_text);
  launch_lines(ctx, CrossEntropyGrad<D>{{x}, out, grads, use_softmax, Indices(label), box.begin[along], check}, shape);
}

/// The angles of the cosines at label, and what becomes of them.
struct Margins {
  double factor, angle, cosine;

  __device__ bool turns() const { return factor != 1 || angle != 0; }
  __device__ double with(double x) const { return (turns() ? ::cos(factor * ::acos(x) + angle) : x) - cosine; }
  __device__ double slope(double x) const {
    if (angle == 0 && x == 1) return factor * factor;  // the limit
    return turns() ? factor * ::sin(factor * ::acos(x) + angle) / ::sqrt((1 - x) * (1 + x)) : 1;
  }
};

/// A line whose element `at` is `value`, and whose others are multiplied.
template <class Line>
struct ScaledLine {
  using Math = typename Line::Math;
  static constexpr bool kCached = Line::kCached;
  const Line& line;
  int64_t index, at;
  Math value, factor;

  __device__ Math scaled(int64_t i, Math x) const { return i == at ? value : x * factor; }
  template <class F>
  __device__ void each(F f) const {
    line.each([&](int64_t i, const auto& x) {
      const Math values[1] = {scaled(i, x[0])};
      f(i, values);
    });
  }
  template <class T, class F>
  __device__ void write(T* out, F f) const {
    line.write(out, [&](int64_t i, const auto& x) {
      const Math values[1] = {scaled(i, x[0])};
      return f(i, values);
    });
  }
  template <class A, class F>
  __device__ A reduce(A number, F combine) const {
    return line.reduce(number, combine);
  }
};

template <class T>
struct MarginCrossEntropy {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T *out, *loss;
  Margins margins;
  math_t<T> factor;
  Indices label;
  IndexCheck check;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    int64_t at = -1;
    M turned = 0;
    if (line.leads()) {
      at = label[line.index];
      if (check.admits(line.index, at)) turned = factor * static_cast<M>(margins.with(line.element(0, at)));
      else at = -1;
    }
    at = line.reduce(at, [](int64_t a, int64_t b) { return a > b ? a : b; });
    turned = line.reduce(turned, Plus{});  // of one thread
    const ScaledLine<Line> scaled{line, line.index, at, turned, factor};
    const NegativeLog<M> negative_log = write_probabilities(scaled, out, true);
    if (line.leads()) loss[line.index] = store<T>(at < 0 ? M(0) : negative_log(turned));
  }
};

/// Writes lines of scores: what multiplies the cosines, with margins at the label where this rank has its class.
template <class T>
struct MarginScores {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;  // null
  math_t<T>* scores;
  Margins margins;
  math_t<T> factor;
  Indices label;
  int64_t first_class;  // of those that this rank has
  IndexCheck check;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const int64_t value = label[line.index], mine = value - first_class;
    if (line.leads()) check.admits(line.index, value);
    M* const to = scores + line.index * line.size;
    line.each([&](int64_t i, const auto& x) {
      to[i] = factor * (i == mine ? static_cast<M>(margins.with(static_cast<double>(x[0]))) : x[0]);
    });
  }
};

/// Where other ranks have classes: the cross entropy of scores in the type of arithmetic.
template <class T>
void sharded_margin_cross_entropy(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label,
                                  const Margins& margins, float scale, DenseTensor& softmax_out, DenseTensor& loss) {
  using D = device_t<T>;
  using C = math_t<D>;
  const Box box = ctx.input_box(0, logits);
  const LineShape shape{logits.dims()[0], logits.dims()[1], 1};
  const auto like = [&](const DenseTensor& x) { return DenseTensor::allocate(x.device(), {x.dims(), dtype_of<C>}); };
  const DenseTensor scores = like(logits);
  launch_lines(ctx,
               MarginScores<D>{{elements<const D>(logits)},
                               nullptr,
                               elements<C>(scores),
                               margins,
                               static_cast<C>(scale),
                               Indices(label),
                               box.begin[1],
                               IndexCheck(ctx, 1, "label", label, 0, box.global[1])},
               shape);
  if constexpr (std::is_same_v<T, C>) {
    cross_entropy<C>(ctx, scores, label, false, true, true, -1, 1, softmax_out, loss);
  } else {
    DenseTensor wide_softmax = like(softmax_out), wide_loss = like(loss);
    cross_entropy<C>(ctx, scores, label, false, true, true, -1, 1, wide_softmax, wide_loss);
    const DeviceWork* const work = device_work(loss.device());
    for (const auto& [wide, out] : {std::pair(&wide_softmax, &softmax_out), std::pair(&wide_loss, &loss)})
      work->convert_floats(out->device().index, out->raw(), out->dtype(), wide->raw(), dtype_of<C>, out->numel());
  }
}

template <class T>
void margin_cross_entropy(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label, bool, int, int,
                          int, float margin1, float margin2, float margin3, float scale, DenseTensor& softmax_out,
                          DenseTensor& loss) {
  using D = device_t<T>;
  const DeviceScope scope(loss.device().index);
  const Margins margins{margin1, margin2, margin3};
  if (ctx.reducer() != nullptr)
    return sharded_margin_cross_entropy<T>(ctx, logits, label, margins, scale, softmax_out, loss);
  if (loss.numel() == 0) return;
  const int64_t rows = logits.dims()[0], classes = logits.dims()[1];
  launch_lines(ctx,
               MarginCrossEntropy<D>{{elements<const D>(logits)},
                                     elements<D>(softmax_out),
                                     elements<D>(loss),
                                     margins,
                                     scale,
                                     Indices(label),
                                     IndexCheck(ctx, 1, "label", label, 0, classes)},
               {rows, classes, 1});
}

/// in: softmax, which out may be.
template <class T>
struct MarginCrossEntropyGrad {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;
  const T *logits, *loss_grad;
  Margins margins;
  math_t<T> scale;
  Indices label;
  int64_t first_class;  // of those that this rank has
  IndexCheck check;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    using M = math_t<T>;
    const M factor = scale * load(loss_grad[line.index]);
    const int64_t value = label[line.index], mine = value - first_class;
    M slope = 0;
    if (line.leads() && check.admits(line.index, value) && mine >= 0 && mine < line.size)
      slope = static_cast<M>(margins.slope(load(logits[line.index * line.size + mine])));
    slope = line.reduce(slope, Plus{});  // of one thread
    line.write(out,
               [&](int64_t i, const auto& p) { return i == mine ? slope * (p[0] - M(1)) * factor : p[0] * factor; });
  }
};

template <class T>
void margin_cross_entropy_grad(const OpContext& ctx, const DenseTensor& logits, const DenseTensor& label,
                               const DenseTensor& softmax_in, const DenseTensor& loss_grad, bool, int, int, int,
                               float margin1, float margin2, float margin3, float scale, DenseTensor& logits_grad) {
  using D = device_t<T>;
  if (loss_grad.numel() == 0) return;
  const DeviceScope scope(logits_grad.device().index);
  const Box box = ctx.input_box(0, logits);
  launch_lines(ctx,
               MarginCrossEntropyGrad<D>{{elements<const D>(softmax_in)},
                                         elements<D>(logits_grad),
                                         elements<const D>(logits),
                                         elements<const D>(loss_grad),
                                         {margin1, margin2, margin3},
                                         scale,
                                         Indices(label),
                                         box.begin[1],
                                         IndexCheck(ctx, 1, "label", label, 0, box.global[1])},
               {logits.dims()[0], logits.dims()[1], 1});
}

}  // namespace

void register_cross_entropy(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("cross_entropy_with_softmax", backend, dtype_of<T>, &cross_entropy<T>);
    register_kernel("cross_entropy_with_softmax_grad", backend, dtype_of<T>, &cross_entropy_grad<T>);
    register_kernel("margin_cross_entropy", backend, dtype_of<T>, &margin_cross_entropy<T>);
    register_kernel("margin_cross_entropy_grad", backend, dtype_of<T>, &margin_cross_entropy_grad<T>);
  });
}

}  // namespace shard::cuda

// softmax, log_softmax and their gradients on CUDA along any axis.
#include "shard/kernels/cuda/softmax.cuh"

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/registry.h"

namespace shard::cuda {
namespace {

template <class T>
struct Softmax {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;
  LineTotals totals;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    const auto all = totals.of(line);
    const math_t<T> scale = 1 / all.sum;
    line.write(out, [&](int64_t, const auto& x) { return exp(x[0] - all.maximum) * scale; });
  }
};

template <class T>
struct LogSoftmax {
  using Element = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  T* out;
  LineTotals totals;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    const auto all = totals.of(line);
    const math_t<T> logarithm = log(all.sum);
    line.write(out, [&](int64_t, const auto& x) { return x[0] - all.maximum - logarithm; });
  }
};

/// A gradient of which each element needs a sum over its line: that of Op::term. It is `sums` where that is not null, and then
/// the sum over all ranks that hold parts of the line.
template <class Op, class T>
struct GradOfLine {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;
  const double* sums;

  template <class Line>
  static __device__ math_t<T> sum_of(const Line& line) {
    math_t<T> sum = 0;
    line.each([&](int64_t, const auto& v) { sum += Op::term(v[0], v[1]); });
    return line.reduce(sum, Plus{});
  }
  template <class Line>
  __device__ void operator()(const Line& line) const {
    const math_t<T> total = sums == nullptr ? sum_of(line) : static_cast<math_t<T>>(sums[line.index]);
    line.write(out, [&](int64_t, const auto& v) { return Op::apply(v[0], v[1], total); });
  }
};
/// That sum of each line.
template <class Op, class T>
struct SumsOfLines {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;  // null
  double* sums;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    const math_t<T> sum = GradOfLine<Op, T>::sum_of(line);
    if (line.leads()) sums[line.index] = static_cast<double>(sum);
  }
};

/// Of softmax(x) and its gradient.
struct SoftmaxGrad {
  template <class M>
  static __device__ M term(M y, M grad) {
    return y * grad;
  }
  template <class M>
  static __device__ M apply(M y, M grad, M total) {
    return y * (grad - total);
  }
};

/// Of log_softmax(x) and its gradient.
struct LogSoftmaxGrad {
  template <class M>
  static __device__ M term(M, M grad) {
    return grad;
  }
  template <class M>
  static __device__ M apply(M y, M grad, M total) {
    return grad - exp(y) * total;
  }
};

template <class T, template <class> class Op>
void forward(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  using D = device_t<T>;
  const LineShape shape = line_shape(ctx, x.dims(), axis);
  const DeviceScope scope(out.device().index);
  const CombinedLines all = combine_lines<D>(ctx, x, shape);
  if (out.numel() != 0) launch_lines(ctx, Op<D>{{elements<const D>(x)}, elements<D>(out), all.totals()}, shape);
}

template <class T, class Op>
void backward(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
              DenseTensor& x_grad) {
  using D = device_t<T>;
  const LineShape shape = line_shape(ctx, out.dims(), axis);
  const DeviceScope scope(x_grad.device().index);
  const D *const y = elements<const D>(out), *const grad = elements<const D>(out_grad);
  DenseTensor sums;
  if (ctx.reducer() != nullptr) {
    sums = numbers_of_lines(out, shape.lines());
    launch_lines(ctx, SumsOfLines<Op, D>{{y, grad}, nullptr, sums.data<double>()}, shape);
    ctx.all_reduce(sums, ReduceType::sum);
  }
  if (x_grad.numel() == 0) return;
  const double* const totals = sums.defined() ? sums.data<double>() : nullptr;
  launch_lines(ctx, GradOfLine<Op, D>{{y, grad}, elements<D>(x_grad), totals}, shape);
}

}  // namespace

void register_softmax(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("softmax", backend, dtype_of<T>, forward<T, Softmax>);
    register_kernel("log_softmax", backend, dtype_of<T>, forward<T, LogSoftmax>);
    register_kernel("softmax_grad", backend, dtype_of<T>, backward<T, SoftmaxGrad>);
    register_kernel("log_softmax_grad", backend, dtype_of<T>, backward<T, LogSoftmaxGrad>);
  });
}

}  // namespace shard::cuda

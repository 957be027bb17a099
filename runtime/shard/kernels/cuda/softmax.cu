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

  template <class Line>
  __device__ void operator()(const Line& line) const {
    const auto all = exponentials(line);
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

  template <class Line>
  __device__ void operator()(const Line& line) const {
    const auto all = exponentials(line);
    const math_t<T> logarithm = log(all.sum);
    line.write(out, [&](int64_t, const auto& x) { return x[0] - all.maximum - logarithm; });
  }
};

/// in: softmax(x) and its gradient.
template <class T>
struct SoftmaxGrad {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    math_t<T> sum = 0;
    line.each([&](int64_t, const auto& v) { sum += v[0] * v[1]; });
    const math_t<T> total = line.reduce(sum, Plus{});
    line.write(out, [&](int64_t, const auto& v) { return v[0] * (v[1] - total); });
  }
};

/// in: log_softmax(x) and its gradient.
template <class T>
struct LogSoftmaxGrad {
  using Element = T;
  static constexpr int kInputs = 2;
  const T* in[2];
  T* out;

  template <class Line>
  __device__ void operator()(const Line& line) const {
    math_t<T> sum = 0;
    line.each([&](int64_t, const auto& v) { sum += v[1]; });
    const math_t<T> total = line.reduce(sum, Plus{});
    line.write(out, [&](int64_t, const auto& v) { return v[1] - exp(v[0]) * total; });
  }
};

template <class T, template <class> class Op>
void forward(const OpContext& ctx, const DenseTensor& x, int axis, DenseTensor& out) {
  using D = device_t<T>;
  refuse_reducer(ctx, "x");
  const LineShape shape = line_shape(ctx, x.dims(), axis);
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  launch_lines(ctx, Op<D>{{elements<const D>(x)}, elements<D>(out)}, shape);
}

template <class T, template <class> class Op>
void backward(const OpContext& ctx, const DenseTensor& out, const DenseTensor& out_grad, int axis,
              DenseTensor& x_grad) {
  using D = device_t<T>;
  refuse_reducer(ctx, "out");
  const LineShape shape = line_shape(ctx, out.dims(), axis);
  if (x_grad.numel() == 0) return;
  const DeviceScope scope(x_grad.device().index);
  launch_lines(ctx, Op<D>{{elements<const D>(out), elements<const D>(out_grad)}, elements<D>(x_grad)}, shape);
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

// Losses of elements and their gradients on CUDA: binary cross entropy, log_loss, huber_loss. What sums is made of
// other ops.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/map.cuh"

namespace shard::cuda {
namespace {

#include "shard/kernels/formulas/loss.inc"

/// A formula of single numbers of T.
template <class Formula, class T, class... N>
using LossKernel = FormulaKernel<Formula, math_t<device_t<T>>, T, T, N...>;

template <class T>
struct HuberBody {
  const T *input, *label;
  T *out, *residual;
  math_t<T> delta;

  template <int N>
  __device__ void run(int64_t i) const {
    math_t<T> x[N], y[N], loss[N];
    load_numbers<N>(input, i, x);
    load_numbers<N>(label, i, y);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      y[k] -= x[k];
      loss[k] = huber_of(y[k], delta);
    }
    store_numbers<N>(out, i, loss);
    store_numbers<N>(residual, i, y);
  }
};

template <class T>
void huber_loss(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label, float delta, DenseTensor& out,
                DenseTensor& residual) {
  using D = device_t<T>;
  const DeviceScope scope(out.device().index);
  const HuberBody<D> body{elements<const D>(input), elements<const D>(label), elements<D>(out), elements<D>(residual),
                          static_cast<math_t<D>>(delta)};
  map(ctx, out.numel(), body, body.input, body.label, elements<const D>(out), elements<const D>(residual));
}

template <class T>
struct HuberGradBody {
  const T *input, *label, *out_grad;
  T *input_grad, *label_grad;
  math_t<T> delta;

  template <int N>
  __device__ void run(int64_t i) const {
    math_t<T> x[N], y[N], grad[N];
    load_numbers<N>(input, i, x);
    load_numbers<N>(label, i, y);
    load_numbers<N>(out_grad, i, grad);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      y[k] = grad[k] * huber_slope(y[k] - x[k], delta);
      x[k] = -y[k];
    }
    store_numbers<N>(label_grad, i, y);
    store_numbers<N>(input_grad, i, x);
  }
};

template <class T>
void huber_loss_grad(const OpContext& ctx, const DenseTensor& input, const DenseTensor& label,
                     const DenseTensor& out_grad, float delta, DenseTensor& input_grad, DenseTensor& label_grad) {
  using D = device_t<T>;
  const DeviceScope scope(input_grad.device().index);
  const HuberGradBody<D> body{elements<const D>(input), elements<const D>(label), elements<const D>(out_grad),
                              elements<D>(input_grad),  elements<D>(label_grad),  static_cast<math_t<D>>(delta)};
  map(ctx, input.numel(), body, body.input, body.label, body.out_grad, elements<const D>(input_grad),
      elements<const D>(label_grad));
}

}  // namespace

void register_loss(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("bce_loss", backend, dtype_of<T>, &LossKernel<BceLoss, T>::binary);
    register_kernel("bce_loss_grad", backend, dtype_of<T>, &LossKernel<BceLossGrad, T>::ternary);
    register_kernel("log_loss", backend, dtype_of<T>, &LossKernel<LogLoss, T, float>::binary);
    register_kernel("log_loss_grad", backend, dtype_of<T>, &LossKernel<LogLossGrad, T, float>::ternary);
    register_kernel("huber_loss", backend, dtype_of<T>, &huber_loss<T>);
    register_kernel("huber_loss_grad", backend, dtype_of<T>, &huber_loss_grad<T>);
  });
}

}  // namespace shard::cuda

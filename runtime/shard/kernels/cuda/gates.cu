// Sigmoid and what gates by a smooth step - silu, swish, gelu, swiglu - with their gradients on CUDA. Device
// functions are exact enough for formulas that are shorter than the polynomials of CPU kernels.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/map.cuh"

namespace shard::cuda {
namespace {

namespace gates {
#include "shard/kernels/cuda/formulas/gates.inc"
}  // namespace gates

template <class T>
void gelu(const OpContext& ctx, const DenseTensor& x, bool approximate, DenseTensor& out) {
  (approximate ? &VectorKernel<gates::GeluTanh, T>::unary : &VectorKernel<gates::Gelu, T>::unary)(ctx, x, out);
}
template <class T>
void gelu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, bool approximate,
               DenseTensor& x_grad) {
  (approximate ? &VectorKernel<gates::GeluTanhGrad, T>::binary : &VectorKernel<gates::GeluGrad, T>::binary)(
      ctx, x, out_grad, x_grad);
}

/// Where the gates and the values are: apart, or the halves of each row of `width` elements.
struct Halves {
  int64_t width;  // 0: they are apart

  /// The place of packs number i of N elements among those of twice as many, for the first half.
  template <int N>
  __device__ int64_t first(int64_t i) const {
    if (width == 0) return i;
    const int64_t packs = width / N;
    const int64_t row = i >> 31 == 0 && packs >> 31 == 0
                            ? static_cast<int64_t>(static_cast<uint32_t>(i) / static_cast<uint32_t>(packs))
                            : i / packs;
    return i + row * packs;
  }
};

template <class T>
struct SwigluBody {
  const T *x, *y;
  T* out;
  Halves halves;

  template <int N>
  __device__ void run(int64_t i) const {
    using V = number_t<T>;
    const int64_t at = halves.first<N>(i);
    math_t<T> gate[N], value[N], result[N];
    load_numbers<N>(x, at, gate);
    load_numbers<N>(y, at, value);
#pragma unroll
    for (int k = 0; k < N; ++k) result[k] = gates::Swiglu::apply(V(gate[k]), V(value[k])).value;
    store_numbers<N>(out, i, result);
  }
};

template <class T>
struct SwigluGradBody {
  const T *x, *y, *out_grad;
  T *x_grad, *y_grad;
  Halves halves;

  template <int N>
  __device__ void run(int64_t i) const {
    using V = number_t<T>;
    const int64_t at = halves.first<N>(i);
    math_t<T> gate[N], value[N], grad[N], to_gate[N], to_value[N];
    load_numbers<N>(x, at, gate);
    load_numbers<N>(y, at, value);
    load_numbers<N>(out_grad, i, grad);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const V g = grad[k], own = gates::silu_of(V(gate[k]));
      const gates::Sigmoids<V> s{V(gate[k])};
      to_gate[k] = (g * V(value[k]) * (s.at + own * s.rest)).value;
      to_value[k] = (g * own).value;
    }
    store_numbers<N>(x_grad, at, to_gate);
    store_numbers<N>(y_grad, at, to_value);
  }
};

/// Rows whose halves do not begin at a pack are computed element by element.
template <class Body, class... D>
void run_halves(const OpContext& ctx, int64_t count, const Body& body, const D*... arrays) {
  if (count == 0) return;
  if (body.halves.width % kTogether<D...> == 0) return map(ctx, count, body, arrays...);
  launch(ctx, map_kernel<1, Body>, grid_for(count, kElementThreads), kElementThreads, count, count, body);
}

template <class T>
void swiglu(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  using D = device_t<T>;
  if (y.defined()) return VectorKernel<gates::Swiglu, T>::binary(ctx, x, y, out);
  if (out.numel() == 0) return;
  const DeviceScope scope(out.device().index);
  const int64_t width = out.dims()[out.dims().rank() - 1];
  const D* const gates = elements<const D>(x);
  const SwigluBody<D> body{gates, gates + width, elements<D>(out), {width}};
  run_halves(ctx, out.numel(), body, body.x, body.y, elements<const D>(out));
}

/// Without y each row of x holds the gates and then the values, and so does its gradient.
template <class T>
void swiglu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, const DenseTensor& out_grad,
                 DenseTensor& x_grad, DenseTensor& y_grad) {
  using D = device_t<T>;
  if (out_grad.numel() == 0) return;
  const DeviceScope scope(out_grad.device().index);
  const bool apart = y.defined();
  const int64_t width = apart ? 0 : out_grad.dims()[out_grad.dims().rank() - 1];
  const D* const gates = elements<const D>(x);
  D* const to_gates = elements<D>(x_grad);
  const SwigluGradBody<D> body{gates,    apart ? elements<const D>(y) : gates + width,   elements<const D>(out_grad),
                               to_gates, apart ? elements<D>(y_grad) : to_gates + width, {width}};
  run_halves(ctx, out_grad.numel(), body, body.x, body.y, body.out_grad, elements<const D>(x_grad),
             static_cast<const D*>(body.y_grad));
}

}  // namespace

void register_gates(int backend) {
  add_unary<gates::Sigmoid>("sigmoid");
  add_unary<gates::Silu>("silu");
  add_unary<gates::Silu>("swish");
  add_ternary<gates::SiluGrad>("silu_grad");
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("gelu", backend, dtype_of<T>, &gelu<T>);
    register_kernel("gelu_grad", backend, dtype_of<T>, &gelu_grad<T>);
    register_kernel("swiglu", backend, dtype_of<T>, &swiglu<T>);
    register_kernel("swiglu_grad", backend, dtype_of<T>, &swiglu_grad<T>);
  });
}

}  // namespace shard::cuda

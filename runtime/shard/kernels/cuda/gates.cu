// Sigmoid and what gates by a smooth step - silu, swish, gelu, swiglu - with their gradients on CUDA. Device
// functions are exact enough for formulas that are shorter than the polynomials of CPU kernels.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/map.cuh"

namespace shard::cuda {
namespace {

/// exp(-|x|) as the square of its root, which does not become subnormal.
template <class V>
struct Decay {
  V root, value;
  __device__ explicit Decay(V x) : root(exp(-0.5 * abs(x))), value(root * root) {}
};

/// 1 / (1 + exp(-x)) and 1 / (1 + exp(x)), each without cancellation.
template <class V>
struct Sigmoids {
  V at, rest;
  __device__ explicit Sigmoids(V x) : at(0), rest(0) {
    const V e = Decay<V>(x).value, large = 1.0 / (1.0 + e), small = e * large;
    at = select(x < V(0), small, large);
    rest = select(x < V(0), large, small);
  }
};

/// factor / (1 + exp(-x)), even where the sigmoid alone is too small for a number.
template <class V>
__device__ V times_sigmoid(V factor, V x) {
  const Decay<V> e(x);
  return select(x < V(0), (factor * e.root) * e.root, factor) / (1.0 + e.value);
}

/// x where it is above `bound`, below which a function is 0; NaN is kept.
template <class V>
__device__ V at_least(double bound, V x) {
  return select(x < V(bound), V(bound), x);
}
template <class V>
__device__ V within(double size, V x) {
  const V raised = at_least(-size, x);
  return select(raised > V(size), V(size), raised);
}

struct Sigmoid {
  template <class V>
  static __device__ V apply(V x) {
    const V e = Decay<V>(x).value;
    return select(x < V(0), e, V(1)) / (1.0 + e);
  }
};

template <class V>
__device__ V silu_of(V x) {
  return times_sigmoid(at_least(-1600.0, x), x);
}
struct Silu {
  template <class V>
  static __device__ V apply(V x) {
    return silu_of(x);
  }
};
struct SiluGrad {
  template <class V>
  static __device__ V apply(V x, V out, V g) {
    const Sigmoids<V> s(x);
    return g * (s.at + out * s.rest);
  }
};

template <class C>
__device__ Number<C> normal_below(Number<C> x) {
  return ::normcdf(x.value);
}
__device__ inline Number<float> normal_below(Number<float> x) { return ::normcdff(x.value); }

/// x P(N(0, 1) <= x).
struct Gelu {
  template <class V>
  static __device__ V apply(V x) {
    const V near = at_least(-40.0, x);  // it is 0 below, where x may be infinite
    return near * normal_below(near);
  }
};
/// P(N(0, 1) <= x) + x * the density of N(0, 1) at x.
struct GeluGrad {
  template <class V>
  static __device__ V apply(V x, V g) {
    const V near = within(40.0, x);
    return g * (normal_below(near) + near * (0.39894228040143268 * exp(-0.5 * (near * near))));
  }
};

/// The function x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3) is x (1 + tanh u) / 2 without its
/// cancellation.
template <class V>
struct GeluTanhAt {
  V x, twice_u, slope;  // the slope is that of 2 u
  __device__ explicit GeluTanhAt(V from) : x(within(24.0, from)), twice_u(0), slope(0) {
    const V square = x * x;
    twice_u = x * (1.5957691216057308 + 0.071354816272600250 * square);
    slope = 1.5957691216057308 + 0.21406444881780075 * square;
  }
};
struct GeluTanh {
  template <class V>
  static __device__ V apply(V x) {
    return times_sigmoid(at_least(-24.0, x), GeluTanhAt<V>(x).twice_u);
  }
};
struct GeluTanhGrad {
  template <class V>
  static __device__ V apply(V x, V g) {
    const GeluTanhAt<V> at(x);
    return g * times_sigmoid(1.0 + at.x * at.slope * Sigmoids<V>(at.twice_u).rest, at.twice_u);
  }
};

template <class T>
void gelu(const OpContext& ctx, const DenseTensor& x, bool approximate, DenseTensor& out) {
  (approximate ? &VectorKernel<GeluTanh, T>::unary : &VectorKernel<Gelu, T>::unary)(ctx, x, out);
}
template <class T>
void gelu_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& out_grad, bool approximate,
               DenseTensor& x_grad) {
  (approximate ? &VectorKernel<GeluTanhGrad, T>::binary : &VectorKernel<GeluGrad, T>::binary)(ctx, x, out_grad, x_grad);
}

struct Swiglu {
  template <class V>
  static __device__ V apply(V x, V y) {
    return silu_of(x) * y;
  }
};

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
    for (int k = 0; k < N; ++k) result[k] = Swiglu::apply(V(gate[k]), V(value[k])).value;
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
      const V g = grad[k], own = silu_of(V(gate[k]));
      const Sigmoids<V> s{V(gate[k])};
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
  if (y.defined()) return VectorKernel<Swiglu, T>::binary(ctx, x, y, out);
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
  add_unary<Sigmoid>("sigmoid");
  add_unary<Silu>("silu");
  add_unary<Silu>("swish");
  add_ternary<SiluGrad>("silu_grad");
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("gelu", backend, dtype_of<T>, &gelu<T>);
    register_kernel("gelu_grad", backend, dtype_of<T>, &gelu_grad<T>);
    register_kernel("swiglu", backend, dtype_of<T>, &swiglu<T>);
    register_kernel("swiglu_grad", backend, dtype_of<T>, &swiglu_grad<T>);
  });
}

}  // namespace shard::cuda

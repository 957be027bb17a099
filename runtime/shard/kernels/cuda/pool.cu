// Pooling and its gradients on CUDA. An element of a result, a gradient too, is computed by one thread, or by a warp where it reads many
// elements. Means are cuDNN's where it has them.
#include "shard/kernels/cpu/pool.h"
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/data_check.cuh"
#include "shard/kernels/cuda/images.cuh"
#include "shard/kernels/cuda/pool_cudnn.h"

namespace shard::cuda {
namespace {

using cpu::box_of;
using cpu::Pooled;

#include "shard/kernels/formulas/window.inc"

/// One dim of windows: those of outputs from out_begin on over elements from in_begin on.
template <class N>
struct PoolDim {
  N in, size, stride, before, dilation, out;  // of the whole dim
  N in_begin, in_size, out_begin, out_size;

  /// What output `o` of the box reads of the elements of the box.
  __device__ SpanOf<N> span(bool exclusive, N o) const {
    SpanOf<N> span = span_of(*this, exclusive, o + out_begin);
    span.begin = max(span.begin - in_begin, N{0});
    span.end = min(span.end - in_begin, in_size);
    return span;
  }
  /// The outputs of the box that read an element of the box.
  __device__ void reading(N element, N& begin, N& end) const {
    begin = max(first_reading(*this, element + in_begin) - out_begin, N{0});
    end = min(first_behind(*this, element + in_begin) - out_begin, out_size);
  }
};

/// The windows of a box of outputs over a box of images.
template <class N>
struct Windows {
  ImageShape<N> in, out;
  PoolDim<N> dims[3];
  bool exclusive;

  __device__ void spans(const ImageElement<N>& output, N (&begin)[3], N (&end)[3], N& counted) const {
    counted = 1;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const SpanOf<N> span = dims[i].span(exclusive, output.at[i]);
      begin[i] = span.begin;
      end[i] = span.end;
      counted *= span.counted;
    }
  }
  __device__ N counted(N d, N h, N w) const {
    return dims[0].span(exclusive, d).counted * dims[1].span(exclusive, h).counted * dims[2].span(exclusive, w).counted;
  }
};

template <class N>
Windows<N> windows_of(const Pooled& pooled, const ShardBox& in, const ShardBox& out) {
  const meta::Image& image = pooled.image;
  Windows<N> windows{
      image_shape<N>(in.dims, image.channel()), image_shape<N>(out.dims, image.channel()), {}, pooled.exclusive};
  for (int i = 0; i < 3; ++i) {
    const meta::Window& window = pooled.windows[static_cast<size_t>(i)];
    const int dim = image.first() + i - 3 + image.space;
    const bool there = i >= 3 - image.space;
    const auto number = [](int64_t value) { return static_cast<N>(value); };
    windows.dims[i] = {number(window.in),
                       number(window.size),
                       number(window.stride),
                       number(window.before),
                       number(window.dilation),
                       number(window.out),
                       number(there ? in.begin[dim] : 0),
                       windows.in.size[i],
                       number(there ? out.begin[dim] : 0),
                       windows.out.size[i]};
  }
  return windows;
}

/// Whether all numbers that kernels compute of these windows fit in 31 bits.
bool are_small(const Pooled& pooled, const ShardBox& in, const ShardBox& out) {
  constexpr int64_t kMost = int64_t{1} << 30;
  bool small = in.dims.numel() < kMost && out.dims.numel() < kMost;
  int64_t counted = 1;
  for (const meta::Window& window : pooled.windows) {
    const int64_t widest = window.in + window.before + window.after + window.size + window.stride;
    small = small && widest < kMost && (window.size != 0 || (window.in + 1) * (window.out + 1) < kMost);
    counted *= small ? window.size == 0 ? window.in : window.size : 0;
    small = small && counted < kMost;
  }
  return small;
}

/// Calls body with the windows in numbers of 32 or of 64 bits.
template <class Body>
void visit_windows(const Pooled& pooled, const ShardBox& in, const ShardBox& out, const Body& body) {
  if (are_small(pooled, in, out)) body(windows_of<int>(pooled, in, out));
  else body(windows_of<int64_t>(pooled, in, out));
}

/// Whether windows read so much that a warp is faster than a thread. Neighbouring threads read neighbouring channels.
bool are_large(const Pooled& pooled) {
  int64_t places = 1;
  for (const meta::Window& window : pooled.windows)
    places *= window.size == 0 ? (window.in + window.out - 1) / window.out : window.size;
  return !pooled.image.channels_last && places >= kWarpPlaces;
}
/// Whether so many outputs read an element.
bool are_dense(const Pooled& pooled, const ShardBox& in, const ShardBox& out) {
  int64_t readers = 1;
  for (const meta::Window& window : pooled.windows) {
    const int64_t most = window.size == 0 ? 2 + window.out / window.in : (window.size - 1) / window.stride + 1;
    readers *= std::min(most, window.out);
  }
  return !pooled.image.channels_last && in.dims.numel() != 0 && out.dims.numel() != 0 && readers >= kWarpPlaces;
}

template <int kLanes, class T, class N>
__global__ void mean_kernel(T* out, const T* values, Windows<N> windows) {
  using C = math_t<T>;
  for (N i = first_item<kLanes, N>(), count = windows.out.numel(); i < count; i += item_step<kLanes, N>()) {
    const ImageElement<N> output(windows.out, i);
    const N first = output.outer * windows.in.places();
    N begin[3], end[3], counted;
    windows.spans(output, begin, end, counted);
    C sum = 0;
    each_place<kLanes>(begin, end, [&](N d, N h, N w) {
      sum += load(values[(first + windows.in.place(d, h, w)) * windows.in.inner + output.inner]);
    });
    sum = sum_of_lanes<kLanes>(sum);
    if (is_first_lane<kLanes>()) out[i] = store<T>(sum / static_cast<C>(counted));
  }
}

/// An element and its place; -1 before the first one.
template <class C, class N>
struct BestInWindow {
  C value;
  N place;
};
/// The larger one, of equal ones the first; NaN wins.
template <class C, class N>
struct LargerElement {
  __device__ BestInWindow<C, N> operator()(const BestInWindow<C, N>& a, const BestInWindow<C, N>& b) const {
    if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
    const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (a_is_nan || a.value == b.value) return a.place < b.place ? a : b;
    return a.value > b.value ? a : b;
  }
};

/// Where each window of x is the largest: the element of `values` there, unless out is null, and the place, in the box or in the
/// whole image, unless `places` is null.
template <int kLanes, class T, class N, class P>
__global__ void max_kernel(T* out, P* places, bool whole, const T* x, const T* values, Windows<N> windows) {
  using C = math_t<T>;
  using Found = BestInWindow<C, N>;
  for (N i = first_item<kLanes, N>(), count = windows.out.numel(); i < count; i += item_step<kLanes, N>()) {
    const ImageElement<N> output(windows.out, i);
    const N first = output.outer * windows.in.places();
    N begin[3], end[3], counted;
    windows.spans(output, begin, end, counted);
    Found best{C(0), N{-1}};
    each_place<kLanes>(begin, end, [&](N d, N h, N w) {
      const N place = windows.in.place(d, h, w);
      const C value = load(x[(first + place) * windows.in.inner + output.inner]);
      if (best.place < 0 || value > best.value || (value != value && best.value == best.value)) best = {value, place};
    });
    if constexpr (kLanes > 1) best = warp_reduce(best, LargerElement<C, N>());
    if (!is_first_lane<kLanes>()) continue;
    if (out != nullptr) out[i] = values[(first + best.place) * windows.in.inner + output.inner];
    if (places == nullptr) continue;
    N place = best.place;
    if (whole) {
      const ImageElement<N> at(ImageShape<N>{1, {windows.in.size[0], windows.in.size[1], windows.in.size[2]}, 1},
                               place);
      const PoolDim<N>* dims = windows.dims;
      place = ((at.at[0] + dims[0].in_begin) * dims[1].in + at.at[1] + dims[1].in_begin) * dims[2].in + at.at[2] +
              dims[2].in_begin;
    }
    places[i] = static_cast<P>(place);
  }
}

/// The part of a box of images that a gradient is of.
template <class N>
struct Part {
  ImageShape<N> shape;
  N begin[3];
};

/// The outputs that read element `at` of a box.
template <class N>
__device__ void readers_of(const Windows<N>& windows, const N (&at)[3], N (&begin)[3], N (&end)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) windows.dims[i].reading(at[i], begin[i], end[i]);
}

template <int kLanes, class T, class N>
__global__ void mean_grad_kernel(T* x_grad, const T* out_grad, Windows<N> windows, Part<N> part) {
  using C = math_t<T>;
  for (N i = first_item<kLanes, N>(), count = part.shape.numel(); i < count; i += item_step<kLanes, N>()) {
    const ImageElement<N> element(part.shape, i);
    const N at[3] = {element.at[0] + part.begin[0], element.at[1] + part.begin[1], element.at[2] + part.begin[2]};
    const N first = element.outer * windows.out.places();
    N begin[3], end[3];
    readers_of(windows, at, begin, end);
    C sum = 0;
    each_place<kLanes>(begin, end, [&](N d, N h, N w) {
      const C grad = load(out_grad[(first + windows.out.place(d, h, w)) * windows.out.inner + element.inner]);
      sum += grad / static_cast<C>(windows.counted(d, h, w));
    });
    sum = sum_of_lanes<kLanes>(sum);
    if (is_first_lane<kLanes>()) x_grad[i] = store<T>(sum);
  }
}

/// `places` has for each output the place of its largest element, in the box or in the whole image.
template <int kLanes, class T, class N, class P>
__global__ void max_grad_kernel(T* x_grad, const P* places, bool whole, const T* out_grad, Windows<N> windows,
                                Part<N> part) {
  using C = math_t<T>;
  for (N i = first_item<kLanes, N>(), count = part.shape.numel(); i < count; i += item_step<kLanes, N>()) {
    const ImageElement<N> element(part.shape, i);
    const N at[3] = {element.at[0] + part.begin[0], element.at[1] + part.begin[1], element.at[2] + part.begin[2]};
    const PoolDim<N>* dims = windows.dims;
    const N place = whole ? ((at[0] + dims[0].in_begin) * dims[1].in + at[1] + dims[1].in_begin) * dims[2].in + at[2] +
                                dims[2].in_begin
                          : windows.in.place(at[0], at[1], at[2]);
    const N first = element.outer * windows.out.places();
    N begin[3], end[3];
    readers_of(windows, at, begin, end);
    C sum = 0;
    each_place<kLanes>(begin, end, [&](N d, N h, N w) {
      const N from = (first + windows.out.place(d, h, w)) * windows.out.inner + element.inner;
      if (static_cast<N>(places[from]) == place) sum += load(out_grad[from]);
    });
    sum = sum_of_lanes<kLanes>(sum);
    if (is_first_lane<kLanes>()) x_grad[i] = store<T>(sum);
  }
}

/// out[o] is the element of `values` at the place of the whole image that mask has; 0 where that is not in the box.
template <class T, class N>
__global__ void pick_kernel(T* out, const int32_t* mask, const T* values, Windows<N> windows) {
  for (N i = grid_first<N>(), count = windows.out.numel(); i < count; i += grid_step<N>()) {
    const PoolDim<N>* dims = windows.dims;
    const N place = static_cast<N>(mask[i]), row = place / dims[2].in, plane = row / dims[1].in;
    const N at[3] = {plane - dims[0].in_begin, row - plane * dims[1].in - dims[1].in_begin,
                     place - row * dims[2].in - dims[2].in_begin};
    bool inside = place >= 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) inside = inside && at[k] >= 0 && at[k] < dims[k].in_size;
    const N first = i / windows.out.places() * windows.in.places();
    T value = store<T>(0);
    if (inside) value = values[first + windows.in.place(at[0], at[1], at[2])];
    out[i] = value;
  }
}

/// Describes a place in an image that must be in the window of its output.
struct alignas(8) PlaceInWindow {
  const char* op;
  int64_t places;  // of an image
  ArgumentPlace mask;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}", place_text(op, mask, position, value, places));
  }
};
using PlaceCheck = DataCheck<PlaceInWindow>;

template <class N>
__global__ void check_places_kernel(const int32_t* mask, Windows<N> windows, PlaceCheck check) {
  for (N i = grid_first<N>(), count = windows.out.numel(); i < count; i += grid_step<N>()) {
    const ImageElement<N> output(windows.out, i);
    const N place = static_cast<N>(mask[i]), row = place / windows.in.size[2], plane = row / windows.in.size[1];
    const N at[3] = {plane, row - plane * windows.in.size[1], place - row * windows.in.size[2]};
    bool inside = place >= 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const SpanOf<N> span = windows.dims[k].span(windows.exclusive, output.at[k]);
      inside = inside && at[k] >= span.begin && at[k] < span.end;
    }
    if (!inside) check.report(i, mask[i]);
  }
}

/// What PoolOps needs of a backend.
template <class E>
struct PoolWork {
  using T = device_t<E>;

  static void forward(const OpContext& ctx, const Pooled& pooled, bool max, const DenseTensor& compared,
                      const Fetched& values, const ShardBox& outputs, DenseTensor& out) {
    const DeviceScope scope(out.device().index);
    const ShardBox images = box_of(values);
    if (!max && mean_pool_by_cudnn(pooled, values.tensor, images, outputs, out)) return;
    visit_windows(pooled, images, outputs, [&]<class N>(const Windows<N>& windows) {
      const T* const from = elements<const T>(values.tensor);
      if (max)
        return largest<N, int32_t>(ctx, pooled, windows, elements<T>(out), nullptr, elements<const T>(compared), from);
      launch_lanes(ctx, are_large(pooled), windows.out.numel(), mean_kernel<1, T, N>, mean_kernel<kWarp, T, N>,
                   elements<T>(out), from, windows);
    });
  }

  static void backward(const OpContext& ctx, const Pooled& pooled, bool max, const Fetched& compared,
                       const Fetched& grads, const Dims& begin, DenseTensor& x_grad) {
    const DeviceScope scope(x_grad.device().index);
    const ShardBox in = box_of(compared), out = box_of(grads);
    if (!max && mean_pool_grad_by_cudnn(pooled, compared.tensor, in, grads.tensor, out, x_grad)) return;
    visit_windows(pooled, in, out, [&]<class N>(const Windows<N>& windows) {
      const Part<N> part = part_of<N>(pooled, begin, x_grad);
      const T* const grad = elements<const T>(grads.tensor);
      if (!max) {
        return launch_lanes(ctx, are_dense(pooled, in, out), part.shape.numel(), mean_grad_kernel<1, T, N>,
                            mean_grad_kernel<kWarp, T, N>, elements<T>(x_grad), grad, windows, part);
      }
      const Scratch scratch(static_cast<size_t>(windows.out.numel()) * sizeof(N));
      N* const places = static_cast<N*>(scratch.data());
      const T* const x = elements<const T>(compared.tensor);
      if (windows.out.numel() != 0) largest<N, N>(ctx, pooled, windows, nullptr, places, x, x, false);
      scatter<N, N>(ctx, pooled, in, out, windows, part, x_grad, places, grad, false);
    });
  }

  static void with_index(const OpContext& ctx, const Pooled& pooled, const Fetched& read, const ShardBox& outputs,
                         DenseTensor& out, DenseTensor& mask) {
    const DeviceScope scope(out.device().index);
    visit_windows(pooled, box_of(read), outputs, [&]<class N>(const Windows<N>& windows) {
      const T* const x = elements<const T>(read.tensor);
      largest<N, int32_t>(ctx, pooled, windows, elements<T>(out), elements<int32_t>(mask), x, x);
    });
  }

  static void check_places(const OpContext& ctx, const Pooled& pooled, const DenseTensor& mask) {
    const DeviceScope scope(mask.device().index);
    const ShardBox shard = {ctx.input_box(1, mask).begin, mask.dims()};
    visit_windows(pooled, cpu::whole_images(pooled, shard), shard, [&]<class N>(const Windows<N>& windows) {
      const PlaceCheck check({ctx.op, windows.in.places(), ArgumentPlace(ctx, 1, mask)});
      launch(ctx, check_places_kernel<N>, grid_for(mask.numel(), 256), 256, elements<const int32_t>(mask), windows,
             check);
    });
  }

  static void index_backward(const OpContext& ctx, const Pooled& pooled, const ShardBox& x, const DenseTensor& places,
                             const Fetched& grads, DenseTensor& x_grad) {
    const DeviceScope scope(x_grad.device().index);
    const ShardBox out = box_of(grads);
    visit_windows(pooled, x, out, [&]<class N>(const Windows<N>& windows) {
      const Part<N> part = part_of<N>(pooled, Dims::filled(x.dims.rank(), 0), x_grad);
      scatter<N, int32_t>(ctx, pooled, x, out, windows, part, x_grad, elements<const int32_t>(places),
                          elements<const T>(grads.tensor), true);
    });
  }

  static void index_double(const OpContext& ctx, const Pooled& pooled, const DenseTensor& mask, const Fetched& values,
                           const ShardBox& outputs, DenseTensor& grad_out_grad) {
    const DeviceScope scope(grad_out_grad.device().index);
    visit_windows(pooled, box_of(values), outputs, [&]<class N>(const Windows<N>& windows) {
      launch(ctx, pick_kernel<T, N>, grid_for(grad_out_grad.numel(), 256), 256, elements<T>(grad_out_grad),
             elements<const int32_t>(mask), elements<const T>(values.tensor), windows);
    });
  }

 private:
  template <class N>
  static Part<N> part_of(const Pooled& pooled, const Dims& begin, const DenseTensor& x_grad) {
    Part<N> part{image_shape<N>(x_grad.dims(), pooled.image.channel()), {0, 0, 0}};
    for (int i = 0; i < pooled.image.space; ++i)
      part.begin[3 - pooled.image.space + i] = static_cast<N>(begin[pooled.image.first() + i]);
    return part;
  }

  template <class N, class P>
  static void largest(const OpContext& ctx, const Pooled& pooled, const Windows<N>& windows, T* out, P* places,
                      const T* x, const T* values, bool whole = true) {
    launch_lanes(ctx, are_large(pooled), windows.out.numel(), max_kernel<1, T, N, P>, max_kernel<kWarp, T, N, P>, out,
                 places, whole, x, values, windows);
  }

  template <class N, class P>
  static void scatter(const OpContext& ctx, const Pooled& pooled, const ShardBox& in, const ShardBox& out,
                      const Windows<N>& windows, const Part<N>& part, DenseTensor& x_grad, const P* places,
                      const T* grad, bool whole) {
    launch_lanes(ctx, are_dense(pooled, in, out), part.shape.numel(), max_grad_kernel<1, T, N, P>,
                 max_grad_kernel<kWarp, T, N, P>, elements<T>(x_grad), places, whole, grad, windows, part);
  }
};

}  // namespace

void register_pool(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) { cpu::PoolOps<PoolWork<T>>::register_for(backend, dtype_of<T>); });
}

}  // namespace shard::cuda

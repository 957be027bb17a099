// Blocks of images as columns, and back, on CUDA: unfold, fold. A thread computes an element of the result.
#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/elementwise.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/meta/window.h"

namespace shard::cuda {
namespace {

/// One space dim: the sizes of the image and of the kernel, how many blocks there are, and what they read, in signed numbers S.
template <class S>
struct FoldWindow {
  S in, size, out, stride, dilation, before;

  explicit FoldWindow(const meta::Window& window)
      : in(static_cast<S>(window.in)), size(static_cast<S>(window.size)), out(static_cast<S>(window.out)),
        stride(static_cast<S>(window.stride)), dilation(static_cast<S>(window.dilation)),
        before(static_cast<S>(window.before)) {}

  /// Element `k` of block `block`; it may be in the padding.
  __device__ S element(S block, S k) const { return block * stride - before + k * dilation; }
  /// The block whose element `k` is `at`; -1 where there is none.
  __device__ S block_of(S at, S k) const {
    const S first = at + before - k * dilation;
    if (first < 0) return -1;
    const S block = first / stride;
    return block < out && block * stride == first ? block : -1;
  }
};

/// out[plane, kr, kc, p, q] = x[plane, row and column that block (p, q) has at (kr, kc)].
template <class W, class S>
__global__ void unfold_kernel(S count, FoldWindow<S> rows, FoldWindow<S> columns, const W* x, W* out) {
  using N = std::make_unsigned_t<S>;  // a step beyond the last element fits
  for (N i = grid_first<N>(); i < static_cast<N>(count); i += grid_step<N>()) {
    const S block = static_cast<S>(i) / columns.out, q = static_cast<S>(i) - block * columns.out;
    const S element = block / rows.out, p = block - element * rows.out;
    const S line = element / columns.size, kc = element - line * columns.size;
    const S plane = line / rows.size, kr = line - plane * rows.size;
    const S r = rows.element(p, kr), c = columns.element(q, kc);
    const bool inside = r >= 0 && r < rows.in && c >= 0 && c < columns.in;
    out[i] = inside ? x[(plane * rows.in + r) * columns.in + c] : W{};
  }
}

/// The sum, in the order of the elements of the kernel, of what the blocks have of an element of the image.
template <class D, class S>
__global__ void fold_kernel(S count, FoldWindow<S> rows, FoldWindow<S> columns, const D* x, D* out) {
  using N = std::make_unsigned_t<S>;
  for (N i = grid_first<N>(); i < static_cast<N>(count); i += grid_step<N>()) {
    const S line = static_cast<S>(i) / columns.in, c = static_cast<S>(i) - line * columns.in;
    const S plane = line / rows.in, r = line - plane * rows.in;
    math_t<D> sum = 0;
    for (S kr = 0; kr < rows.size; ++kr) {
      const S p = rows.block_of(r, kr);
      if (p < 0) continue;
      for (S kc = 0; kc < columns.size; ++kc) {
        const S q = columns.block_of(c, kc);
        if (q < 0) continue;
        const S k = (plane * rows.size + kr) * columns.size + kc;
        sum = wrap_add(sum, load(x[(k * rows.out + p) * columns.out + q]));
      }
    }
    out[i] = store<D>(sum);
  }
}

/// Calls body with a number of the type in which all places of both tensors and of the padding are counted.
template <class Body>
void visit_places(const meta::Windows& windows, const DenseTensor& x, const DenseTensor& out, const Body& body) {
  int64_t most = std::max(x.numel(), out.numel());
  for (const meta::Window& w : {windows[1], windows[2]})
    most = std::max({most, w.in + w.before + w.after, w.stride, w.dilation, w.reach() + w.in + w.before});
  if (most < int64_t{1} << 31) body(int32_t{0});
  else body(int64_t{0});
}

void unfold(const OpContext& ctx, const DenseTensor& x, const IntArray& kernel_sizes, const IntArray& strides,
            const IntArray& paddings, const IntArray& dilations, DenseTensor& out) {
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  const meta::Windows windows =
      meta::unfold_windows(x.dims()[2], x.dims()[3], kernel_sizes, strides, paddings, dilations);
  visit_places(windows, x, out, [&]<class S>(S) {
    visit_word(static_cast<int>(size_of(x.dtype())), [&]<class W>(TypeTag<W>) {
      launch(ctx, unfold_kernel<W, S>, grid_for(count, kThreads), kThreads, static_cast<S>(count),
             FoldWindow<S>(windows[1]), FoldWindow<S>(windows[2]), static_cast<const W*>(x.raw()),
             static_cast<W*>(out.raw()));
    });
  });
}

template <class T>
void fold(const OpContext& ctx, const DenseTensor& x, const IntArray&, const IntArray& kernel_sizes,
          const IntArray& strides, const IntArray& paddings, const IntArray& dilations, DenseTensor& out) {
  using D = device_t<T>;
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device().index);
  if (x.numel() == 0) return fill_zeros(out);
  const meta::Windows windows =
      meta::unfold_windows(out.dims()[2], out.dims()[3], kernel_sizes, strides, paddings, dilations);
  visit_places(windows, x, out, [&]<class S>(S) {
    launch(ctx, fold_kernel<D, S>, grid_for(count, kThreads), kThreads, static_cast<S>(count),
           FoldWindow<S>(windows[1]), FoldWindow<S>(windows[2]), elements<const D>(x), elements<D>(out));
  });
}

}  // namespace

void register_fold(int backend) {
  for_types(NumberTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("unfold", backend, dtype_of<T>, &unfold);
    register_kernel("fold", backend, dtype_of<T>, &fold<T>);
  });
}

}  // namespace shard::cuda

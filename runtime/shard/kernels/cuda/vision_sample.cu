// grid_sample and its gradient on CUDA. The gradient of x is added up element by element, in the order of the places that read it, which
// are sorted by the elements.
#include <algorithm>
#include <bit>

#include "shard/kernels/cuda/cuda_kernels.cuh"
#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/radix_sort.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/registry.h"
#include "shard/meta/vision.h"

namespace shard::cuda {
namespace {

using meta::GridPadding;
using meta::GridSampling;

#include "shard/kernels/formulas/grid_sample.inc"

/// Images and the places in them; coordinates count dims from the last one.
struct Images {
  Images(const GridSampling& how, const DenseTensor& x, const DenseTensor& grid)
      : how(how), dims{x.dims().rank() - 2, {}, {}}, corners(how.nearest ? 1 : 1 << dims.space), batch(grid.dims()[0]),
        channels(x.dims()[1]) {
    for (int i = 0; i < dims.space; ++i) {
      dims.sizes[i] = x.dims()[x.dims().rank() - 1 - i];
      dims.strides[i] = elements;
      elements *= dims.sizes[i];
    }
    places = grid.dims().numel(1, grid.dims().rank() - 1);
  }

  GridSampling how;
  ImageDims dims;
  int corners;
  int64_t batch, channels, elements = 1, places = 0;
};

/// What is around place `i` of all images, in each dim.
template <int kSpace, class T>
__device__ __forceinline__ void find_neighbours(const Images& images, const T* grid, int64_t i,
                                                Neighbours (&around)[3]) {
#pragma unroll
  for (int d = 0; d < 3; ++d) {
    around[d] = {0, 0, 0};
    if (d < kSpace)
      around[d] = neighbours_of(images.how, static_cast<double>(load(grid[i * kSpace + d])), images.dims.sizes[d]);
  }
}

/// A place for each thread (x), and kChannels channels of it (y).
template <int kSpace, class T>
__global__ void sample_kernel(T* out, const T* x, const T* grid, Images images, int64_t channels) {
  using C = math_t<T>;
  constexpr int kCorners = 1 << kSpace;
  for (int64_t i = grid_first<int64_t>(); i < images.batch * images.places; i += grid_step<int64_t>()) {
    const int64_t image = i / images.places, place = i - image * images.places;
    Neighbours around[3];
    find_neighbours<kSpace>(images, grid, i, around);
    int64_t from[kCorners];
    C weights[kCorners];
#pragma unroll
    for (int k = 0; k < kCorners; ++k) {
      from[k] = -1;
      weights[k] = 0;
      if (k >= images.corners) continue;
      const Corner corner = corner_of(images.dims, around, k);
      from[k] = corner.from;
      weights[k] = static_cast<C>(corner.weight);
    }
    const int64_t first = static_cast<int64_t>(blockIdx.y) * channels, end = min(first + channels, images.channels);
    for (int64_t c = image * images.channels + first; c < image * images.channels + end; ++c) {
      C sum = 0;
#pragma unroll
      for (int k = 0; k < kCorners; ++k) {
        if (from[k] >= 0) sum += weights[k] * load(x[c * images.elements + from[k]]);
      }
      out[c * images.places + place] = store<T>(sum);
    }
  }
}

/// The gradient of grid: a place for each thread, which adds up its channels.
template <int kSpace, class T>
__global__ void sample_grid_grad_kernel(T* grid_grad, const T* x, const T* grid, const T* out_grad, Images images) {
  using C = math_t<T>;
  constexpr int kCorners = 1 << kSpace;
  for (int64_t i = grid_first<int64_t>(); i < images.batch * images.places; i += grid_step<int64_t>()) {
    const int64_t image = i / images.places, place = i - image * images.places;
    Neighbours around[3];
    find_neighbours<kSpace>(images, grid, i, around);
    int64_t from[kCorners];
    C sums[kCorners] = {};  // for each corner, of the elements times the gradients
#pragma unroll
    for (int k = 0; k < kCorners; ++k) from[k] = k < images.corners ? corner_of(images.dims, around, k).from : -1;
    for (int64_t c = image * images.channels; c < (image + 1) * images.channels; ++c) {
      const C grad = load(out_grad[c * images.places + place]);
#pragma unroll
      for (int k = 0; k < kCorners; ++k) {
        if (from[k] >= 0) sums[k] += grad * load(x[c * images.elements + from[k]]);
      }
    }
    C result[3] = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < kCorners; ++k) {
      if (from[k] < 0) continue;
      const Corner corner = corner_of(images.dims, around, k);
#pragma unroll
      for (int d = 0; d < kSpace; ++d) result[d] += static_cast<C>(corner.slope[d]) * sums[k];
    }
#pragma unroll
    for (int d = 0; d < kSpace; ++d) grid_grad[i * kSpace + d] = store<T>(result[d]);
  }
}

/// For each corner around each place of all images its weight, and a pair of its element of all images, which is `elements` for those
/// outside, and its number.
template <int kSpace, class T>
__global__ void sample_corners_kernel(Integers keys, Integers numbers, math_t<T>* weights, const T* grid,
                                      Images images) {
  const int64_t places = images.batch * images.places, elements = images.batch * images.elements;
  for (int64_t i = grid_first<int64_t>(); i < places; i += grid_step<int64_t>()) {
    const int64_t image = i / images.places;
    Neighbours around[3];
    find_neighbours<kSpace>(images, grid, i, around);
    for (int k = 0; k < images.corners; ++k) {
      const Corner corner = corner_of(images.dims, around, k);
      const int64_t number = i * images.corners + k;
      keys.set(number, corner.from < 0 ? elements : image * images.elements + corner.from);
      numbers.set(number, number);
      weights[number] = static_cast<math_t<T>>(corner.weight);
    }
  }
}

/// The gradient of x: an element of an image for each thread (x), and kChannels channels of it at once (y). The pairs are in the order of
/// their keys, and those of an element in that of their numbers.
template <int kChannels, class T>
__global__ void sample_x_grad_kernel(T* x_grad, const T* out_grad, Integers keys, Integers numbers, int64_t count,
                                     const math_t<T>* weights, Images images) {
  using C = math_t<T>;
  for (int64_t i = grid_first<int64_t>(); i < images.batch * images.elements; i += grid_step<int64_t>()) {
    const int64_t image = i / images.elements, element = i - image * images.elements;
    int64_t at = 0;
    for (int64_t end = count; at < end;) {
      const int64_t middle = at + (end - at) / 2;
      if (keys[middle] < i) at = middle + 1;
      else end = middle;
    }
    const int64_t step = static_cast<int64_t>(gridDim.y) * kChannels;
    for (int64_t first = static_cast<int64_t>(blockIdx.y) * kChannels; first < images.channels; first += step) {
      const int64_t channel = image * images.channels + first;
      C sums[kChannels] = {};
      for (int64_t pair = at; pair < count && keys[pair] == i; ++pair) {
        const int64_t number = numbers[pair], place = number / images.corners - image * images.places;
        const C weight = weights[number];
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          if (first + c < images.channels) sums[c] += weight * load(out_grad[(channel + c) * images.places + place]);
        }
      }
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (first + c < images.channels) x_grad[(channel + c) * images.elements + element] = store<T>(sums[c]);
      }
    }
  }
}

constexpr int64_t kMostBlocks = 65535;  // in y

/// Blocks for `count` threads in x, and for all channels, `each` of them at once, in y.
dim3 grid_of(const Images& images, int64_t count, int64_t each) {
  return {grid_for(count, kThreads), static_cast<unsigned>(std::min(kMostBlocks, (images.channels + each - 1) / each))};
}

/// As many channels for a thread that all blocks are allowed, and at least 16.
int64_t channels_of_thread(const Images& images) {
  return std::max<int64_t>(16, (images.channels + kMostBlocks - 1) / kMostBlocks);
}

template <class E>
void grid_sample(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grid, const std::string& mode,
                 const std::string& padding_mode, bool align_corners, DenseTensor& out) {
  using T = device_t<E>;
  if (out.numel() == 0) return;
  const Images images(meta::sampling_of(ctx.op, mode, padding_mode, align_corners), x, grid);
  const DeviceScope scope(out.device().index);
  const int64_t channels = channels_of_thread(images);
  launch(ctx, images.dims.space == 2 ? sample_kernel<2, T> : sample_kernel<3, T>,
         grid_of(images, images.batch * images.places, channels), kThreads, elements<T>(out), elements<const T>(x),
         elements<const T>(grid), images, channels);
}

template <class T>
void sample_x_grad(const OpContext& ctx, const Images& images, const T* grid, const T* out_grad, T* x_grad) {
  const int64_t elements = images.batch * images.elements, count = images.batch * images.places * images.corners;
  constexpr int64_t kMost = UINT32_MAX;
  PairMemory memory(count, elements > kMost, count > kMost);
  Pairs& pairs = memory.pairs;
  const Scratch weight_memory(static_cast<size_t>(count) * sizeof(math_t<T>));
  auto* const weights = static_cast<math_t<T>*>(weight_memory.data());
  launch(ctx, images.dims.space == 2 ? sample_corners_kernel<2, T> : sample_corners_kernel<3, T>,
         grid_for(images.batch * images.places, kThreads), kThreads, Integers{pairs.keys, pairs.wide_keys},
         Integers{pairs.places, pairs.wide_places}, weights, grid, images);
  radix_sort(pairs, key_bits(static_cast<uint64_t>(elements)));
  constexpr int kChannels = 8;
  launch(ctx, sample_x_grad_kernel<kChannels, T>, grid_of(images, elements, kChannels), kThreads, x_grad, out_grad,
         Integers{pairs.keys, pairs.wide_keys}, Integers{pairs.places, pairs.wide_places}, count, weights, images);
}

template <class E>
void grid_sample_grad(const OpContext& ctx, const DenseTensor& x, const DenseTensor& grid, const DenseTensor& out_grad,
                      const std::string& mode, const std::string& padding_mode, bool align_corners, DenseTensor& x_grad,
                      DenseTensor& grid_grad) {
  using T = device_t<E>;
  const Images images(meta::sampling_of(ctx.op, mode, padding_mode, align_corners), x, grid);
  const DeviceScope scope(x_grad.device().index);
  const T *const places = elements<const T>(grid), *const grads = elements<const T>(out_grad);
  if (x_grad.numel() > 0 && out_grad.numel() > 0) sample_x_grad<T>(ctx, images, places, grads, elements<T>(x_grad));
  else fill_zeros(x_grad);
  if (grid_grad.numel() == 0) return;
  if (out_grad.numel() == 0) return fill_zeros(grid_grad);
  launch(ctx, images.dims.space == 2 ? sample_grid_grad_kernel<2, T> : sample_grid_grad_kernel<3, T>,
         grid_for(images.batch * images.places, kThreads), kThreads, elements<T>(grid_grad), elements<const T>(x),
         places, grads, images);
}

}  // namespace

void register_grid_sample(int backend) {
  for_types(FloatTypes{}, [&]<class T>(TypeTag<T>) {
    register_kernel("grid_sample", backend, dtype_of<T>, grid_sample<T>);
    register_kernel("grid_sample_grad", backend, dtype_of<T>, grid_sample_grad<T>);
  });
}

}  // namespace shard::cuda

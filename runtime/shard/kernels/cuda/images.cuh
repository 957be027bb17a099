// Tensors of images on the device as [outer, depth, height, width, inner]: inner elements are the channels, where they are last.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// Sizes in numbers of N, in which numbers of all elements fit.
template <class N>
struct ImageShape {
  N outer = 1, size[3] = {1, 1, 1}, inner = 1;

  __host__ __device__ N places() const { return size[0] * size[1] * size[2]; }
  __host__ __device__ N numel() const { return outer * places() * inner; }
  __device__ N place(N d, N h, N w) const { return (d * size[1] + h) * size[2] + w; }
};

/// The element of an image tensor: its outer and inner number, and its place.
template <class N>
struct ImageElement {
  N outer, at[3], inner;

  __device__ ImageElement(const ImageShape<N>& shape, N element) {
    N rest = element;
    inner = 0;
    if (shape.inner != 1) {
      rest = element / shape.inner;
      inner = element - rest * shape.inner;
    }
#pragma unroll
    for (int i = 2; i >= 0; --i) {
      if (shape.size[i] == 1) {
        at[i] = 0;
        continue;
      }
      const N next = rest / shape.size[i];
      at[i] = rest - next * shape.size[i];
      rest = next;
    }
    outer = rest;
  }
};

/// The shape of images whose channels are dim `channel`; others than the first dim and that one are of space.
template <class N>
ImageShape<N> image_shape(const Dims& dims, int channel) {
  const int space = dims.rank() - 2;
  const bool last = channel == dims.rank() - 1;
  ImageShape<N> shape;
  shape.outer = static_cast<N>(last ? dims[0] : dims[0] * dims[1]);
  shape.inner = static_cast<N>(last ? dims[channel] : 1);
  for (int i = 0; i < space; ++i) shape.size[3 - space + i] = static_cast<N>(dims[(last ? 1 : 2) + i]);
  return shape;
}

/// Calls body(d, h, w) for a box of places: one of kLanes lanes for all of them, or each lane for every kLanes-th.
template <int kLanes, class N, class Body>
__device__ __forceinline__ void each_place(const N (&begin)[3], const N (&end)[3], const Body& body) {
  if constexpr (kLanes == 1) {
    for (N d = begin[0]; d < end[0]; ++d) {
      for (N h = begin[1]; h < end[1]; ++h) {
        for (N w = begin[2]; w < end[2]; ++w) body(d, h, w);
      }
    }
  } else {
    const N height = end[1] - begin[1], width = end[2] - begin[2];
    if (end[0] <= begin[0] || height <= 0 || width <= 0) return;
    const N count = (end[0] - begin[0]) * height * width;
    for (N i = static_cast<N>(threadIdx.x) % kLanes; i < count; i += kLanes) {
      const N row = i / width, plane = row / height;
      body(begin[0] + plane, begin[1] + (row - plane * height), begin[2] + (i - row * width));
    }
  }
}

/// The numbers of the elements of a thread, or of a warp, in a loop over the grid.
template <int kLanes, class N>
__device__ N first_item() {
  return grid_first<N>() / kLanes;
}
template <int kLanes, class N>
__device__ N item_step() {
  return grid_step<N>() / kLanes;
}
template <int kLanes>
__device__ bool is_first_lane() {
  return kLanes == 1 || threadIdx.x % kLanes == 0;
}

template <class C>
struct AddUp {
  __device__ C operator()(C a, C b) const { return a + b; }
};
template <int kLanes, class C>
__device__ C sum_of_lanes(C sum) {
  if constexpr (kLanes == 1) return sum;
  else return warp_reduce(sum, AddUp<C>());
}

/// Windows of at least so many places are shared by the lanes of a warp.
inline constexpr int64_t kWarpPlaces = 64;

/// Launches a kernel that computes each of `count` elements by one thread, or by a warp: `one`, `warp` are the kernel for each.
template <class N, class... P>
void launch_lanes(const OpContext& ctx, bool warps, N count, void (*one)(P...), void (*warp)(P...),
                  std::type_identity_t<P>... arguments) {
  constexpr int kThreads = 256;
  const int64_t threads = static_cast<int64_t>(count) * (warps ? kWarp : 1);
  launch(ctx, warps ? warp : one, grid_for(threads, kThreads), kThreads, arguments...);
}

}  // namespace shard::cuda

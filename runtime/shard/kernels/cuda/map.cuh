// Elementwise kernels whose tensors have one shape, but several dtypes or several outputs. The body of a kernel is a
// struct that computes N neighbouring elements, so that the accesses of a warp are as large as they can be and leave
// no gaps.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/elementwise.cuh"

namespace shard::cuda {

/// Calls body.run<N>(i) for elements [i * N, i * N + N), and body.run<1>(i) for those behind the packs.
template <int N, class Body>
__global__ void map_kernel(int64_t packs, int64_t count, Body body) {
  const int64_t thread = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  const int64_t step = gridDim.x * int64_t{blockDim.x};
  for (int64_t i = thread; i < packs; i += step) body.template run<N>(i);
  for (int64_t i = packs * N + thread; i < count; i += step) body.template run<1>(i);
}

/// Whether packs of N elements are aligned in each of these; a null pointer is not accessed.
template <int N, class... T>
__host__ __device__ bool packs_are_aligned(const T*... data) {
  return (... && (reinterpret_cast<uintptr_t>(data) % (N * sizeof(T)) == 0));
}

/// Runs a body for `count` elements of these arrays.
template <class Body, class... T>
void map(const OpContext& ctx, int64_t count, const Body& body, const T*... arrays) {
  if (count == 0) return;
  constexpr int kN = kTogether<T...>;
  const bool aligned = packs_are_aligned<kN>(arrays...);
  const int64_t packs = aligned ? count / kN : 0;
  launch(ctx, map_kernel<kN, Body>, grid_for(aligned ? packs + 1 : count, kElementThreads), kElementThreads, packs,
         count, body);
}

/// Elements [i * N, i * N + N) in the type of arithmetic.
template <int N, class T>
__device__ void load_numbers(const T* from, int64_t i, math_t<T> (&numbers)[N]) {
  T values[N];
  load_elements<N>(from, i, values);
#pragma unroll
  for (int k = 0; k < N; ++k) numbers[k] = load(values[k]);
}

template <int N, class T>
__device__ void store_numbers(T* to, int64_t i, const math_t<T> (&numbers)[N]) {
  T values[N];
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = store<T>(numbers[k]);
  store_elements<N>(to, i, values);
}

}  // namespace shard::cuda

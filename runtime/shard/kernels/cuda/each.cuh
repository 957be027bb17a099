// A kernel that calls a body for each index.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

inline constexpr int kEachThreads = 256;

/// Calls body(i) for each i below `count`.
template <class Body>
__global__ void each_kernel(int64_t count, Body body) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) body(i);
}
template <class Body>
void for_each(const OpContext& ctx, int64_t count, const Body& body) {
  if (count > 0) launch(ctx, each_kernel<Body>, grid_for(count, kEachThreads), kEachThreads, count, body);
}

}  // namespace shard::cuda

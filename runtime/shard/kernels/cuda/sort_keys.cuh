// Sorts numbers of 64 bits on the device, by a bitonic network: the way does not depend on the numbers.
#pragma once

#include <algorithm>
#include <bit>

#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

inline constexpr int kSortThreads = 512, kSortKeys = 4 * kSortThreads;  // of a block, which sorts in shared memory

/// Exchanges keys i and i + distance where they are in the wrong order for sequences of `size` keys, which rise and fall in turn.
__device__ inline void order_keys(uint64_t& low, uint64_t& high, int64_t i, int64_t size) {
  if ((low > high) != ((i & size) == 0)) return;
  const uint64_t kept = low;
  low = high;
  high = kept;
}

/// The steps of a block from `first` to `last` sizes of sequences: those whose distances are within its keys.
static __global__ void sort_block_kernel(uint64_t* keys, int64_t first, int64_t last) {
  SHARD_SHARED(block, uint64_t[kSortKeys]);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSortKeys;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kSortKeys; i += kSortThreads) block[i] = keys[begin + i];
  for (int64_t size = first; size <= last; size *= 2) {
    for (int distance = static_cast<int>(min(size, int64_t{kSortKeys}) / 2); distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = thread; pair < kSortKeys / 2; pair += kSortThreads) {
        const int i = pair / distance * 2 * distance + pair % distance;
        order_keys(block[i], block[i + distance], begin + i, size);
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < kSortKeys; i += kSortThreads) keys[begin + i] = block[i];
}

/// One step of larger sequences.
static __global__ void sort_step_kernel(uint64_t* keys, int64_t pairs, int64_t distance, int64_t size) {
  for (int64_t pair = grid_first<int64_t>(); pair < pairs; pair += grid_step<int64_t>()) {
    const int64_t i = (pair & ~(distance - 1)) * 2 + (pair & (distance - 1));
    order_keys(keys[i], keys[i + distance], i, size);
  }
}

/// The keys for which memory is needed to sort `count`: those behind are the largest, and are written by the caller.
inline int64_t keys_to_sort(int64_t count) {
  return std::max<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count))), kSortKeys);
}

/// Sorts `count` keys, which is a number of keys_to_sort.
inline void sort_keys(const OpContext& ctx, uint64_t* keys, int64_t count) {
  const auto blocks = static_cast<unsigned>(count / kSortKeys);
  launch(ctx, sort_block_kernel, blocks, kSortThreads, keys, int64_t{2}, int64_t{kSortKeys});
  for (int64_t size = 2 * kSortKeys; size <= count; size *= 2) {
    for (int64_t distance = size / 2; distance >= kSortKeys; distance /= 2)
      launch(ctx, sort_step_kernel, grid_for(count / 2, 256), 256, keys, count / 2, distance, size);
    launch(ctx, sort_block_kernel, blocks, kSortThreads, keys, size, size);
  }
}

}  // namespace shard::cuda

// Sorts of lines that a block holds in shared memory, several where they are short.
#pragma once

#include "shard/kernels/cuda/order.cuh"

namespace shard::cuda {

inline constexpr int kSortTile = 1024;  // elements that a block sorts
inline constexpr int kSortThreads = kSortTile / 2;

/// The least power of two that is not below `size`, which is at most kSortTile.
inline int tile_width(int64_t size) {
  int width = 1;
  while (width < size) width *= 2;
  return width;
}

/// Sorts each run of `width` entries of a tile, a power of two: by their keys, and those with equal keys by their places. All
/// kSortThreads threads call it, after a barrier, and it ends with one.
template <class K>
__device__ void sort_tile(K* keys, uint32_t* places, int width) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int run = 2; run <= width; run *= 2) {
    for (int step = run / 2; step > 0; step /= 2) {
      const int low = 2 * thread - (thread & (step - 1)), high = low + step;
      const bool falls = run < width && (low & run) != 0;
      const K low_key = keys[low], high_key = keys[high];
      const uint32_t low_place = places[low], high_place = places[high];
      const bool is_before = high_key < low_key || (high_key == low_key && high_place < low_place);
      if (is_before != falls) {
        keys[low] = high_key;
        keys[high] = low_key;
        places[low] = high_place;
        places[high] = low_place;
      }
      // a warp has 2 * kWarp neighbouring entries for itself in steps up to kWarp
      const int next = step > 1 ? step / 2 : run;
      if (step > kWarp || next > kWarp) __syncthreads();
      else __syncwarp();
    }
  }
  __syncthreads();
}

/// The sorted lines of a tile: a line has `width` entries, of which those behind its elements are last.
template <class K>
struct SortedTile {
  const K* keys;
  const uint32_t* places;  // an element's number in its line
  int width;
  int64_t first;  // line of the tensor
  int lines;      // of the tile; those of the tensor may end before
};

/// Sorts all lines, of at most `width` elements, and calls finish(lines, tile), with all threads of the block, for those of each
/// tile. `Lines` is as in scan.cuh.
template <class D, class Lines, class Finish>
__global__ void __launch_bounds__(kSortThreads)
    sort_tiles_kernel(const D* x, Lines lines, bool descending, int width, Finish finish) {
  using K = Key<D>;
  SHARD_SHARED(keys, K[kSortTile]);
  SHARD_SHARED(places, uint32_t[kSortTile]);
  const int together = kSortTile / width, size = static_cast<int>(lines.size);
  const int64_t count = lines.count();
  for (int64_t first = int64_t{blockIdx.x} * together; first < count; first += int64_t{gridDim.x} * together) {
    for (int e = static_cast<int>(threadIdx.x); e < kSortTile;
         e += kSortThreads) {  // neighbouring threads read neighbours
      const int line = lines.inner == 1 ? e / width : e % together, k = lines.inner == 1 ? e % width : e / together;
      const bool is_element = first + line < count && k < size;
      keys[line * width + k] = is_element ? key_of(x[lines.place(first + line, k)], descending) : ~K{0};
      places[line * width + k] = static_cast<uint32_t>(k);
    }
    __syncthreads();
    sort_tile(keys, places, width);
    finish(lines, SortedTile<K>{keys, places, width, first, together});
    __syncthreads();
  }
}

template <class D, class Lines, class Finish>
void sort_tiles(const OpContext& ctx, const D* x, const Lines& lines, bool descending, const Finish& finish) {
  const int width = tile_width(lines.size);
  const int64_t tiles = (lines.count() * width + kSortTile - 1) / kSortTile;
  launch(ctx, sort_tiles_kernel<D, Lines, Finish>, grid_for(tiles * kSortThreads, kSortThreads), kSortThreads, x, lines,
         descending, width, finish);
}

}  // namespace shard::cuda

// Selection from long lines by a block for each, which finds the key of a rank digit by digit.
#pragma once

#include "shard/kernels/cuda/block_sort.cuh"
#include "shard/kernels/cuda/scan.cuh"

namespace shard::cuda {

/// Whether blocks should select from lines: not where these are too few for the device, and so long that sorting them is faster.
template <class Lines>
bool blocks_select(const Lines& lines) {
  return lines.size <= int64_t{1} << 18 || lines.count() >= multiprocessors();
}

/// The key of an element, and how many elements have smaller ones.
template <class K>
struct Ranked {
  K key;
  int64_t before;
};

/// The digit of the element with `rank` in these counts of 256 digits, which is at least 0 and below their sum; and how many are
/// before it. One warp calls it; lane by lane, the one that has the digit writes.
__device__ inline void find_digit(const unsigned* counts, int64_t rank, unsigned* digit, unsigned* before) {
  constexpr int kDigits = 256 / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  unsigned sum = 0;
  for (int d = 0; d < kDigits; ++d) sum += counts[lane * kDigits + d];
  const unsigned through = warp_scan(sum, [](unsigned a, unsigned b) { return a + b; });
  unsigned below = through - sum;
  if (rank < int64_t{below} || rank >= int64_t{through}) return;
  int d = lane * kDigits;
  while (rank >= int64_t{below} + counts[d]) below += counts[d++];
  *digit = static_cast<unsigned>(d);
  *before = below;
}

/// That of the element with `rank`, counted from 0, of elements [first, last) of a line. All threads of the block call it.
template <class D, class Lines>
__device__ Ranked<Key<D>> find_rank(const D* x, const Lines& lines, int64_t line, int64_t first, int64_t last,
                                    bool descending, int64_t rank) {
  using K = Key<D>;
  SHARD_SHARED(counts, unsigned[256]);
  SHARD_SHARED(found, unsigned[2]);
  const int thread = static_cast<int>(threadIdx.x);
  Ranked<K> ranked{0, 0};
  for (int shift = kKeyBits<D> - 8; shift >= 0; shift -= 8) {
    if (thread < 256) counts[thread] = 0;
    __syncthreads();
    for (int64_t i = first + thread; i < last; i += blockDim.x) {
      const K key = key_of(x[lines.place(line, i)], descending);
      const bool is_candidate = shift + 8 == kKeyBits<D> || key >> (shift + 8) == ranked.key;
      if (is_candidate) atomicAdd(&counts[(key >> shift) & 255u], 1u);
    }
    __syncthreads();
    if (thread < kWarp) find_digit(counts, rank - ranked.before, &found[0], &found[1]);
    __syncthreads();
    ranked.key = static_cast<K>(ranked.key << 8 | found[0]);
    ranked.before += found[1];
  }
  return ranked;
}

/// The number of this thread among those of a block of kSortThreads threads that count, which follow `seen` others; these are
/// counted in then. All threads of the block call it.
__device__ inline int64_t number_in_block(bool counts, int64_t& seen) {
  constexpr int kWarps = kSortThreads / kWarp;
  SHARD_SHARED(of_warps, int[kWarps]);
  if (!__syncthreads_or(counts)) return seen;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const unsigned lanes = __ballot_sync(kAllLanes, counts);
  if (lane == 0) of_warps[warp] = __popc(lanes);
  __syncthreads();
  int64_t number = seen + __popc(lanes & ((1u << lane) - 1u));
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) number += of_warps[w];
    seen += of_warps[w];
  }
  return number;
}

/// Where the element with this key is in its line that is preceded by `number` others with it. All threads of the block call it.
template <class D, class Lines>
__device__ int64_t find_equal(const D* x, const Lines& lines, int64_t line, Key<D> key, int64_t number) {
  SHARD_SHARED(found, int64_t);
  int64_t seen = 0;
  for (int64_t begin = 0; begin < lines.size && seen <= number; begin += kSortThreads) {
    const int64_t i = begin + threadIdx.x;
    const bool is_equal = i < lines.size && key_of(x[lines.place(line, i)], false) == key;
    if (number_in_block(is_equal, seen) == number && is_equal) found = i;
  }
  __syncthreads();
  const int64_t place = found;
  __syncthreads();
  return place;
}

/// The first `kept` elements, at most kSortTile, of each of `parts` parts of lines, which all have as many or more. Calls finish.write(lines,
/// line, place in the line, part, rank) for each; parts are numbered through all lines.
template <class D, class Lines, class Finish>
__global__ void __launch_bounds__(kSortThreads)
    select_kernel(const D* x, Lines lines, bool descending, int64_t parts, int kept, int width, Finish finish) {
  using K = Key<D>;
  SHARD_SHARED(keys, K[kSortTile]);
  SHARD_SHARED(places, uint32_t[kSortTile]);
  SHARD_SHARED(taken, unsigned);
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t part = blockIdx.x; part < lines.count() * parts; part += gridDim.x) {
    const int64_t line = part / parts, number = part - line * parts;
    const int64_t first = lines.size * number / parts, last = lines.size * (number + 1) / parts;
    const Ranked<K> end = find_rank(x, lines, line, first, last, descending, kept - 1);
    const int64_t equals = kept - end.before;  // elements that are kept of those with the last key
    for (int e = thread; e < kSortTile; e += kSortThreads) {
      keys[e] = ~K{0};
      places[e] = ~0u;
    }
    if (thread == 0) taken = 0;
    __syncthreads();
    int64_t seen = 0;
    for (int64_t begin = first; begin < last; begin += kSortThreads) {
      const int64_t i = begin + thread;
      const K key = i < last ? key_of(x[lines.place(line, i)], descending) : ~K{0};
      int64_t slot = kept;
      if (i < last && key < end.key) slot = atomicAdd(&taken, 1u);  // in any order, because they are sorted then
      if (seen < equals) {
        const bool is_equal = i < last && key == end.key;
        const int64_t equal = number_in_block(is_equal, seen);
        if (is_equal && equal < equals) slot = end.before + equal;
      }
      if (slot == kept) continue;
      keys[slot] = key;
      places[slot] = static_cast<uint32_t>(i - first);
    }
    __syncthreads();
    sort_tile(keys, places, width);
    for (int j = thread; j < kept; j += kSortThreads) finish.write(lines, line, first + places[j], part, j);
    __syncthreads();
  }
}

}  // namespace shard::cuda

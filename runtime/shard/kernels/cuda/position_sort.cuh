// A stable sort of positions by whole keys: passes over 8 bits of the keys, each of which counts digits by tile and then moves every pair
// to its place. Equal inputs give equal orders.
#pragma once

#include "shard/kernels/cuda/scan.cuh"

namespace shard::cuda {

inline constexpr int kSortDigits = 256, kSortWarps = 8, kSortThreads = kSortWarps * kWarp;
inline constexpr int kSortRounds = 16, kSortTile = kSortThreads * kSortRounds;

/// One pass over `count` pairs of a key and a position, by the digit at `shift`.
template <class K>
struct SortPass {
  const K *keys, *places;
  K *keys_out, *places_out;
  K* counts;  // [digits, tiles]: how many there are, and then the places of the first ones
  int64_t count, tiles;
  int shift;

  /// The pair of round `round` of this thread, of which a warp has neighbours.
  __device__ int64_t index(int round) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
    return int64_t{blockIdx.x} * kSortTile + warp * (kSortRounds * kWarp) + round * kWarp + lane;
  }
  __device__ int digit(int64_t i) const {
    return i < count ? static_cast<int>(keys[i] >> shift) & (kSortDigits - 1) : 0;
  }
};

/// The lanes of the warp that have the same digit, among those that have one.
__device__ inline unsigned lanes_with(int digit, bool has_one) {
  unsigned lanes = __ballot_sync(kAllLanes, has_one);
#pragma unroll
  for (int bit = 1; bit < kSortDigits; bit *= 2) {
    const unsigned set = __ballot_sync(kAllLanes, (digit & bit) != 0);
    lanes &= (digit & bit) != 0 ? set : ~set;
  }
  return lanes;
}

/// Counts the digits of each warp of a tile.
template <class K>
__device__ void count_digits(const SortPass<K>& pass, K (&counts)[kSortWarps][kSortDigits]) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int w = 0; w < kSortWarps; ++w) counts[w][threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < kSortRounds; ++round) {
    const int64_t i = pass.index(round);
    const int digit = pass.digit(i);
    const unsigned equal = lanes_with(digit, i < pass.count);
    if (i < pass.count && lane == __ffs(static_cast<int>(equal)) - 1)
      counts[warp][digit] += static_cast<K>(__popc(equal));
    __syncwarp();
  }
  __syncthreads();
}

template <class K>
__global__ void __launch_bounds__(kSortThreads) count_digits_kernel(SortPass<K> pass) {
  SHARD_SHARED(counts, K[kSortWarps][kSortDigits]);
  count_digits(pass, counts);
  K sum = 0;
  for (int w = 0; w < kSortWarps; ++w) sum = static_cast<K>(sum + counts[w][threadIdx.x]);
  pass.counts[threadIdx.x * pass.tiles + blockIdx.x] = sum;
}

/// Moves each pair behind those of smaller digits, and of equal ones that come before it.
template <class K>
__global__ void __launch_bounds__(kSortThreads) move_pairs_kernel(SortPass<K> pass) {
  SHARD_SHARED(next, K[kSortWarps][kSortDigits]);
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  count_digits(pass, next);
  K place = pass.counts[threadIdx.x * pass.tiles + blockIdx.x];
  for (int w = 0; w < kSortWarps; ++w) {
    const K count = next[w][threadIdx.x];
    next[w][threadIdx.x] = place;
    place = static_cast<K>(place + count);
  }
  __syncthreads();
  for (int round = 0; round < kSortRounds; ++round) {
    const int64_t i = pass.index(round);
    const int digit = pass.digit(i);
    const unsigned equal = lanes_with(digit, i < pass.count);
    if (i < pass.count) {
      const int64_t to = static_cast<int64_t>(next[warp][digit]) + __popc(equal & ((1u << lane) - 1));
      pass.keys_out[to] = pass.keys[i];
      pass.places_out[to] = pass.places[i];
    }
    __syncwarp();
    if (i < pass.count && lane == __ffs(static_cast<int>(equal)) - 1)
      next[warp][digit] += static_cast<K>(__popc(equal));
    __syncwarp();
  }
}

/// counts[i] becomes the sum of those before it.
template <class K>
struct SumBefore {
  using State = K;
  static constexpr bool kExclusive = true;
  K* counts;
  bool exclusive = true;

  __device__ State nothing() const { return 0; }
  __device__ State element(int64_t place, int64_t) const { return counts[place]; }
  __device__ State then(State before, State next) const { return static_cast<State>(before + next); }
  __device__ void write(int64_t place, State state) const { counts[place] = state; }
};

/// Sorts `count` pairs by the lowest `bits` bits of their keys. There is memory for as many again; keys and places are where the result is.
template <class K>
void sort_positions(const OpContext& ctx, int64_t count, int bits, K*& keys, K*& places, K* other_keys,
                    K* other_places) {
  const int64_t tiles = (count + kSortTile - 1) / kSortTile;
  const Scratch memory(static_cast<size_t>(tiles * kSortDigits) * sizeof(K));
  K* const counts = static_cast<K*>(memory.data());
  for (int shift = 0; shift < bits; shift += 8) {
    const SortPass<K> pass{keys, places, other_keys, other_places, counts, count, tiles, shift};
    launch(ctx, count_digits_kernel<K>, static_cast<unsigned>(tiles), kSortThreads, pass);
    run_scan(ctx, SumBefore<K>{counts}, Lines{1, tiles * kSortDigits, 1});
    launch(ctx, move_pairs_kernel<K>, static_cast<unsigned>(tiles), kSortThreads, pass);
    std::swap(keys, other_keys);
    std::swap(places, other_places);
  }
}

}  // namespace shard::cuda

// Sorts of lines of any length, by sorts of the whole tensor: by keys, and then by lines.
#pragma once

#include "shard/kernels/cuda/order.cuh"
#include "shard/kernels/cuda/radix_sort.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// The line of element i, of lines of `size` elements; 32 bits are divided where they are enough.
__device__ inline int64_t line_of(int64_t i, int64_t size, bool wide) {
  return wide ? i / size : static_cast<uint32_t>(i) / static_cast<uint32_t>(size);
}

template <class D, class Lines>
__global__ void make_pairskernel(const D* x, Lines lines, bool descending, int64_t count, Key<D>* keys,
                                 Integers places) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t line = line_of(i, lines.size, places.wide);
    keys[i] = key_of(x[lines.place(line, i - line * lines.size)], descending);
    places.set(i, i);
  }
}

/// The lines of pairs that were sorted by keys.
template <class K>
__global__ void lines_of_pairskernel(K* to, Integers places, int64_t count, int64_t size) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>())
    to[i] = static_cast<K>(line_of(places[i], size, places.wide));
}

/// The elements of lines in order. `Lines` is as in scan.cuh.
template <class D, class Lines>
class DeviceSort {
 public:
  using K = Key<D>;

  DeviceSort(const OpContext& ctx, const D* x, const Lines& lines, bool descending)
      : count_(lines.count() * lines.size), memory_(count_, sizeof(K) == 8, count_ > int64_t{UINT32_MAX}) {
    Pairs& pairs = memory_.pairs;
    if (count_ == 0) return;
    constexpr int kThreads = 256;
    const unsigned blocks = grid_for(count_, kThreads);
    launch(ctx, make_pairskernel<D, Lines>, blocks, kThreads, x, lines, descending, count_, static_cast<K*>(pairs.keys),
           places());
    radix_sort(pairs, kKeyBits<D>);
    if (lines.count() == 1) return;
    pairs.wide_keys = false;
    launch(ctx, lines_of_pairskernel<uint32_t>, blocks, kThreads, static_cast<uint32_t*>(pairs.keys), places(), count_,
           lines.size);
    radix_sort(pairs, key_bits(static_cast<uint64_t>(lines.count() - 1)));
  }

  /// Element line * size + k is the number of the k-th element of a line in order, counted in the same way.
  Integers places() const { return {memory_.pairs.places, memory_.pairs.wide_places}; }
  /// The keys in order, of a single line.
  const K* keys() const { return static_cast<const K*>(memory_.pairs.keys); }

 private:
  int64_t count_;
  PairMemory memory_;
};

}  // namespace shard::cuda

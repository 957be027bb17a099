// Sorts of lines of any length, by sorts of the whole tensor: by keys, and then by lines.
#pragma once

#include <bit>

#include "shard/kernels/cuda/order.cuh"
#include "shard/kernels/cuda/radix_sort.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// Numbers of 32 or 64 bits.
struct Places {
  void* data;
  bool wide;

  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : int64_t{static_cast<const uint32_t*>(data)[i]};
  }
  __device__ void set(int64_t i, int64_t place) const {
    if (wide) static_cast<int64_t*>(data)[i] = place;
    else static_cast<uint32_t*>(data)[i] = static_cast<uint32_t>(place);
  }
};

/// The line of element i, of lines of `size` elements; 32 bits are divided where they are enough.
__device__ inline int64_t line_of(int64_t i, int64_t size, bool wide) {
  return wide ? i / size : static_cast<uint32_t>(i) / static_cast<uint32_t>(size);
}

template <class D, class Lines>
__global__ void make_pairs_kernel(const D* x, Lines lines, bool descending, int64_t count, Key<D>* keys,
                                  Places places) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t line = line_of(i, lines.size, places.wide);
    keys[i] = key_of(x[lines.place(line, i - line * lines.size)], descending);
    places.set(i, i);
  }
}

/// The lines of pairs that were sorted by keys.
template <class K>
__global__ void lines_of_pairs_kernel(K* to, Places places, int64_t count, int64_t size) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>())
    to[i] = static_cast<K>(line_of(places[i], size, places.wide));
}

/// The elements of lines in order. `Lines` is as in scan.cuh.
template <class D, class Lines>
class DeviceSort {
 public:
  using K = Key<D>;

  DeviceSort(const OpContext& ctx, const D* x, const Lines& lines, bool descending)
      : count_(lines.count() * lines.size), wide_(count_ > int64_t{UINT32_MAX}), bytes_(bytes_of(count_, wide_)),
        memory_(4 * bytes_) {
    auto* const at = static_cast<char*>(memory_.data());
    pairs_ = {count_, sizeof(K) == 8, wide_, at, at + bytes_, at + 2 * bytes_, at + 3 * bytes_};
    if (count_ == 0) return;
    constexpr int kThreads = 256;
    const unsigned blocks = grid_for(count_, kThreads);
    launch(ctx, make_pairs_kernel<D, Lines>, blocks, kThreads, x, lines, descending, count_,
           static_cast<K*>(pairs_.keys), places());
    radix_sort(pairs_, kKeyBits<D>);
    if (lines.count() == 1) return;
    pairs_.wide_keys = false;
    launch(ctx, lines_of_pairs_kernel<uint32_t>, blocks, kThreads, static_cast<uint32_t*>(pairs_.keys), places(),
           count_, lines.size);
    radix_sort(pairs_, static_cast<int>(std::bit_width(static_cast<uint64_t>(lines.count() - 1))));
  }

  /// Element line * size + k is the number of the k-th element of a line in order, counted in the same way.
  Places places() const { return {pairs_.places, wide_}; }
  /// The keys in order, of a single line.
  const K* keys() const { return static_cast<const K*>(pairs_.keys); }

 private:
  static size_t bytes_of(int64_t count, bool wide) {
    return (static_cast<size_t>(count) * (sizeof(K) == 8 || wide ? 8 : 4) + 255) / 256 * 256;
  }

  int64_t count_;
  bool wide_;
  size_t bytes_;  // of each of the four arrays
  Scratch memory_;
  Pairs pairs_;
};

}  // namespace shard::cuda

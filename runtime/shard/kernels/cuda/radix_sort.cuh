// Sorts of pairs of a key and a place, of any number, by CUB. The host model has an equivalent (tests/cuda/host/cub.cc).
#pragma once

#include <algorithm>
#include <bit>

#include "shard/core/op_context.h"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

/// Numbers of 32 bits, which are not negative, or of 64.
struct Integers {
  void* data;
  bool wide;

  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : int64_t{static_cast<const uint32_t*>(data)[i]};
  }
  __device__ void set(int64_t i, int64_t number) const {
    if (wide) static_cast<int64_t*>(data)[i] = number;
    else static_cast<uint32_t*>(data)[i] = static_cast<uint32_t>(number);
  }
};

/// `count` pairs in memory of the current device, which has room for as many again.
struct Pairs {
  int64_t count;
  bool wide_keys;    // 64 bits, else 32
  bool wide_places;  // likewise
  void *keys, *places;
  void *other_keys, *other_places;

  size_t key_bytes() const { return static_cast<size_t>(count) * (wide_keys ? 8 : 4); }
  size_t place_bytes() const { return static_cast<size_t>(count) * (wide_places ? 8 : 4); }
};

/// `count` pairs with memory of their own.
class PairMemory {
 public:
  PairMemory(int64_t count, bool wide_keys, bool wide_places)
      : bytes_((static_cast<size_t>(count) * (wide_keys || wide_places ? 8 : 4) + 255) / 256 * 256),
        memory_(4 * bytes_), pairs{count, wide_keys, wide_places, at(0), at(1), at(2), at(3)} {}

 private:
  void* at(size_t array) const { return static_cast<char*>(memory_.data()) + array * bytes_; }
  size_t bytes_;  // of each of the four arrays
  Scratch memory_;

 public:
  Pairs pairs;
};

/// The bits of keys up to `most`; at least one.
inline int key_bits(uint64_t most) { return std::max(static_cast<int>(std::bit_width(most)), 1); }

/// Sorts pairs by the lowest `bits` bits of their keys; pairs with equal ones keep their order. What `pairs` points to may change places
/// with the other memory.
void radix_sort(Pairs& pairs, int bits);

}  // namespace shard::cuda

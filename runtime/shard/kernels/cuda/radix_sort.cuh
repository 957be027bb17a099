// Sorts of pairs of a key and a place, of any number, by CUB. The host model has an equivalent (tests/cuda/host/cub.cc).
#pragma once

#include "shard/core/op_context.h"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

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

/// Sorts pairs by the lowest `bits` bits of their keys; pairs with equal ones keep their order. What `pairs` points to may change places
/// with the other memory.
void radix_sort(Pairs& pairs, int bits);

}  // namespace shard::cuda

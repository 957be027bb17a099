// The part of CUB's sort that shard calls, of the host model: a stable sort, which is run in stream order.
#pragma once

#include <type_traits>

#include "../../cuda_runtime_api.h"

namespace cuda_host {

/// Pairs of a key and a value of that many bytes each, which are sorted from memory into other memory.
struct SortedPairs {
  size_t key_bytes, value_bytes;
  const void *keys, *values;
  void *to_keys, *to_values;
  uint64_t count;
  int begin_bit, end_bit;
};
/// Without memory, says only how much is needed.
cudaError_t sort_pairs(void* memory, size_t& bytes, const SortedPairs& pairs, cudaStream_t stream);

}  // namespace cuda_host

namespace cub {

template <class T>
struct DoubleBuffer {
  T* d_buffers[2];
  int selector = 0;

  DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
  T* Current() const { return d_buffers[selector]; }
  T* Alternate() const { return d_buffers[selector ^ 1]; }
};

struct DeviceRadixSort {
  template <class K, class V, class N>
  static cudaError_t SortPairs(void* memory, size_t& bytes, DoubleBuffer<K>& keys, DoubleBuffer<V>& values, N count,
                               int begin_bit, int end_bit, cudaStream_t stream) {
    static_assert(std::is_unsigned_v<K> && std::is_unsigned_v<V>);
    const cuda_host::SortedPairs pairs{sizeof(K),        sizeof(V),        keys.Current(),
                                       values.Current(), keys.Alternate(), values.Alternate(),
                                       uint64_t{count},  begin_bit,        end_bit};
    if (memory != nullptr) {
      keys.selector ^= 1;
      values.selector ^= 1;
    }
    return cuda_host::sort_pairs(memory, bytes, pairs, stream);
  }
};

}  // namespace cub

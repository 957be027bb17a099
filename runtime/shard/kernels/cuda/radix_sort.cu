// The instances of CUB's sort, in one file because they take long to compile.
#include "shard/kernels/cuda/radix_sort.cuh"

#include <cub/device/device_radix_sort.cuh>

namespace shard::cuda {
namespace {

template <class K, class P>
void sort_as(Pairs& pairs, int bits) {
  cub::DoubleBuffer<K> keys(static_cast<K*>(pairs.keys), static_cast<K*>(pairs.other_keys));
  cub::DoubleBuffer<P> places(static_cast<P*>(pairs.places), static_cast<P*>(pairs.other_places));
  const auto count = static_cast<std::conditional_t<sizeof(P) == 4, uint32_t, uint64_t>>(pairs.count);
  const auto sort = [&](void* memory, size_t& bytes) {
    check(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, places, count, 0, bits, stream()),
          "cub::DeviceRadixSort::SortPairs");
  };
  size_t bytes = 0;
  sort(nullptr, bytes);
  const Scratch memory(bytes);
  sort(memory.data(), bytes);
  pairs.keys = keys.Current();
  pairs.other_keys = keys.Alternate();
  pairs.places = places.Current();
  pairs.other_places = places.Alternate();
}

}  // namespace

void radix_sort(Pairs& pairs, int bits) {
  if (pairs.wide_keys && pairs.wide_places) sort_as<uint64_t, uint64_t>(pairs, bits);
  else if (pairs.wide_keys) sort_as<uint64_t, uint32_t>(pairs, bits);
  else if (pairs.wide_places) sort_as<uint32_t, uint64_t>(pairs, bits);
  else sort_as<uint32_t, uint32_t>(pairs, bits);
}

}  // namespace shard::cuda

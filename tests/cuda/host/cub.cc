// CUB's sort of the host model.
#include "include/cub/device/device_radix_sort.cuh"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "access.h"
#include "memory.h"

namespace {

using cuda_host::SortedPairs;

constexpr size_t kMemory = 256;  // not 0, so that it has to be allocated

/// Bytes that are read must have been written.
void use(const char* name, const void* data, size_t bytes, cuda_host::Kind kind) {
  cuda_host::use_range(std::string("SortPairs: ") + name, data, bytes, kind);
  const cuda_host::Region* const region = cuda_host::find_region(data);
  const auto* const first = static_cast<const char*>(data);
  if (kind != cuda_host::Kind::read || bytes == 0 || region->is_written.empty()) return;
  const auto begin = region->is_written.begin() + (first - region->data);
  if (std::find(begin, begin + static_cast<int64_t>(bytes), uint8_t{0}) != begin + static_cast<int64_t>(bytes))
    throw cuda_host::Finding(std::string("SortPairs: ") + name + " was never written");
}

uint64_t number_at(const void* data, size_t bytes, uint64_t i) {
  uint64_t number = 0;
  std::memcpy(&number, static_cast<const char*>(data) + i * bytes, bytes);
  return number;
}

void sort(const SortedPairs& pairs) {
  const cuda_host::DeviceAccess access;
  using cuda_host::Kind;
  use("the array of keys", pairs.keys, pairs.count * pairs.key_bytes, Kind::read);
  use("the array of values", pairs.values, pairs.count * pairs.value_bytes, Kind::read);
  use("the array of other keys", pairs.to_keys, pairs.count * pairs.key_bytes, Kind::write);
  use("the array of other values", pairs.to_values, pairs.count * pairs.value_bytes, Kind::write);
  const int bits = pairs.end_bit - pairs.begin_bit;
  const auto digits = [&](uint64_t i) {
    const uint64_t key = number_at(pairs.keys, pairs.key_bytes, i) >> pairs.begin_bit;
    return bits >= 64 ? key : key & ((uint64_t{1} << bits) - 1);
  };
  std::vector<uint64_t> order(pairs.count);
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return digits(a) < digits(b); });
  const auto move = [&](void* to, const void* from, size_t bytes) {
    for (uint64_t i = 0; i < pairs.count; ++i)
      std::memcpy(static_cast<char*>(to) + i * bytes, static_cast<const char*>(from) + order[i] * bytes, bytes);
  };
  move(pairs.to_keys, pairs.keys, pairs.key_bytes);
  move(pairs.to_values, pairs.values, pairs.value_bytes);
}

}  // namespace

namespace cuda_host {

cudaError_t sort_pairs(void* memory, size_t& bytes, const SortedPairs& pairs, cudaStream_t stream) {
  if (memory == nullptr) {
    bytes = kMemory;
    return cudaSuccess;
  }
  if (bytes < kMemory || find_region(memory) == nullptr || pairs.begin_bit >= pairs.end_bit ||
      pairs.end_bit > 8 * static_cast<int>(pairs.key_bytes))
    return cudaErrorInvalidValue;
  return submit(stream, [pairs] { sort(pairs); });
}

}  // namespace cuda_host

// How kernels that copy elements see memory: as words of 1 to 16 bytes, as large as sizes and addresses allow, whatever the dtype.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "shard/core/dense_tensor.h"
#include "shard/core/dtype.h"
#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

/// The largest word, up to `most` bytes, that divides all of these sizes and addresses.
inline int word_size(std::initializer_list<uint64_t> bytes, int most = 16) {
  uint64_t all = static_cast<uint64_t>(most);
  for (const uint64_t each : bytes) all |= each;
  return static_cast<int>(all & (~all + 1));
}

inline uint64_t address(const void* data) { return reinterpret_cast<uint64_t>(data); }

/// Calls body with the type of a word.
template <class Body>
void visit_word(int bytes, const Body& body) {
  switch (bytes) {
    case 1: return body(TypeTag<uint8_t>());
    case 2: return body(TypeTag<uint16_t>());
    case 4: return body(TypeTag<uint32_t>());
    case 8: return body(TypeTag<uint64_t>());
    default: return body(TypeTag<uint4>());
  }
}

/// Calls body with the type of a word and an index type in which numbers up to `most` and the steps of grids fit.
template <class Body>
void visit_word_and_index(int bytes, int64_t most, const Body& body) {
  visit_word(bytes, [&]<class W>(TypeTag<W> word) {
    if (most < int64_t{1} << 31) body(word, TypeTag<uint32_t>());
    else body(word, TypeTag<int64_t>());
  });
}

/// The first element of a thread in a loop over the grid, and the distance to its next.
template <class N>
__device__ N grid_first() {
  return static_cast<N>(blockIdx.x) * static_cast<N>(blockDim.x) + static_cast<N>(threadIdx.x);
}
template <class N>
__device__ N grid_step() {
  return static_cast<N>(gridDim.x) * static_cast<N>(blockDim.x);
}

/// Integers of 32 or 64 bits: a tensor of int32 or int64.
struct Indices {
  const void* data;
  bool wide;

  explicit Indices(const DenseTensor& index) : Indices(index.raw(), index.dtype() == DType::int64) {}
  __host__ __device__ Indices(const void* numbers, bool is_wide) : data(numbers), wide(is_wide) {}
  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};

/// All elements of x, unless out is its buffer.
inline void copy_all(const DenseTensor& x, const DenseTensor& out) {
  if (x.raw() == out.raw() || x.numel() == 0) return;
  check(cudaMemcpyAsync(out.raw(), x.raw(), x.meta().bytes(), cudaMemcpyDeviceToDevice, stream()),
        "cudaMemcpyAsync (device to device)");
}

inline void fill_zeros(const DenseTensor& out) {
  if (out.numel() != 0) check(cudaMemsetAsync(out.raw(), 0, out.meta().bytes(), stream()), "cudaMemsetAsync");
}

}  // namespace shard::cuda

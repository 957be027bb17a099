// The element types of kernels on the device, and the shape arithmetic that several kernels share.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/numbers.cuh"

namespace shard::cuda {

/// The device type for T: same bits, device arithmetic.
template <class T>
struct DeviceType {
  using type = T;
};
template <>
struct DeviceType<bfloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceType<float16> {
  using type = __half;
};
template <class T>
using device_t = typename DeviceType<T>::type;

template <class T>
T* elements(const DenseTensor& tensor) {
  return static_cast<T*>(tensor.raw());
}

/// As many elements as one 128-bit load reads.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T values[kSize];
};

/// Pack `i` of memory that is aligned to 16 bytes, as one access that does not stay in the caches.
template <class T>
__device__ Pack<T> load_pack(const T* from, int64_t i) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from) + i);
  Pack<T> pack;
  memcpy(static_cast<void*>(&pack), &bits, sizeof(bits));
  return pack;
}

/// A shape with element strides per operand (0 where an operand is broadcast), small enough to be a kernel argument.
template <int Operands>
struct Strided {
  int rank = 0;
  int64_t sizes[kMaxRank];
  int64_t strides[Operands][kMaxRank];

  /// Adds an inner dim, or widens the last one where every operand traverses both uniformly.
  void append(int64_t size, const int64_t (&step)[Operands]) {
    if (size == 1) return;
    bool merges = rank > 0;
    for (int i = 0; merges && i < Operands; ++i) merges = strides[i][rank - 1] == step[i] * size;
    if (!merges) sizes[rank++] = 1;
    sizes[rank - 1] *= size;
    for (int i = 0; i < Operands; ++i) strides[i][rank - 1] = step[i];
  }

  /// The offsets that row-major index `index` selects in each operand.
  template <class Index>
  __device__ void locate(Index index, int64_t (&at)[Operands]) const {
    for (int i = 0; i < Operands; ++i) at[i] = 0;
    for (int dim = rank - 1; dim > 0; --dim) {
      const Index size = static_cast<Index>(sizes[dim]);
      const Index rest = index / size;
      const int64_t here = static_cast<int64_t>(index - rest * size);
      for (int i = 0; i < Operands; ++i) at[i] += here * strides[i][dim];
      index = rest;
    }
    if (rank == 0) return;
    for (int i = 0; i < Operands; ++i) at[i] += static_cast<int64_t>(index) * strides[i][0];
  }
};

/// The row-major strides of `dims`; 0 where a dim has size 1, so that it broadcasts.
inline Dims broadcast_strides(const Dims& dims) {
  Dims strides = dims;
  int64_t step = 1;
  for (int i = dims.rank() - 1; i >= 0; --i) {
    strides[i] = dims[i] == 1 ? 0 : step;
    step *= dims[i];
  }
  return strides;
}

/// The stride of `strides` (right-aligned) for dim `i` of a shape of `rank` dims; 0 beyond its own
/// rank.
inline int64_t stride_at(const Dims& strides, int rank, int i) {
  const int own = i - (rank - strides.rank());
  return own < 0 ? 0 : strides[own];
}

}  // namespace shard::cuda

// Conversions of numbers on the device, as in core/convert.h.
#pragma once

#include <cuda/std/limits>

#include "shard/kernels/cuda/device.cuh"

namespace shard::cuda {

/// Towards zero and clamped; NaN becomes 0.
template <class To, class From>
__device__ To to_integer(From value) {
  constexpr To low = ::cuda::std::numeric_limits<To>::min();
  constexpr To high = ::cuda::std::numeric_limits<To>::max();
  if (value != value) return To{0};
  if (value <= static_cast<From>(low)) return low;
  if (value >= static_cast<From>(high)) return high;  // static_cast rounds up to high + 1 where From is too narrow
  return static_cast<To>(value);
}

}  // namespace shard::cuda

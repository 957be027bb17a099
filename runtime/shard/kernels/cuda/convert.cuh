// Conversions of numbers on the device, as in core/convert.h.
#pragma once

#include <cuda/std/limits>

#include "shard/kernels/cuda/cuda_types.cuh"

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

/// A number as an element of dtype To, as shard::convert does it.
template <class To, class From>
__device__ __forceinline__ To convert(From number) {
  constexpr bool kIsHalf = !std::is_same_v<math_t<To>, To>;
  if constexpr (std::is_same_v<To, bool>) return number != From{0};
  else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) return to_integer<To>(number);
  else if constexpr (kIsHalf && !std::is_same_v<From, float>) return round_to<To>(static_cast<double>(number));
  else return round_to<To>(number);
}

}  // namespace shard::cuda

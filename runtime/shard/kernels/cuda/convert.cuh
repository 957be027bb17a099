// Conversions of numbers on the device, as in core/convert.h.
#pragma once

#include "shard/kernels/cuda/numbers.cuh"

namespace shard::cuda {

/// Towards zero and clamped; NaN becomes 0.
template <class To, class From>
__device__ To to_integer(From value) {
  constexpr auto all = static_cast<std::make_unsigned_t<To>>(-1);
  constexpr To high = static_cast<To>(std::is_signed_v<To> ? all >> 1 : all);
  constexpr To low = static_cast<To>(std::is_signed_v<To> ? -high - 1 : 0);
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
/// An element as one of dtype To.
template <class To, class T>
__device__ __forceinline__ To convert_element(T element) {
  return convert<To>(load(element));
}

}  // namespace shard::cuda

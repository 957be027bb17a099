// Converts numbers between dtypes. The cast kernels, attributes (Scalar) and kernels that fill
// tensors with one number use it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "shard/core/dtype.h"

namespace shard {

/// `x` as a float rounded to odd: if bits are cut off, the last bit is set. Rounding the result to
/// 16 bits is the same as rounding x once; rounding to nearest twice is not.
inline float to_odd_float(double x) {
  const float nearest = static_cast<float>(x);
  if (!(std::abs(nearest) <= std::numeric_limits<float>::max()) || static_cast<double>(nearest) == x) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

/// `x`, a bool, integer, float or double, as a To. Floats outside the range of an integer type
/// become the nearest end of the range and NaN becomes 0, which C++ leaves undefined. Integers
/// wrap. A float that is too large for a narrower type becomes infinite.
template <class To, class From>
constexpr To convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From low = static_cast<From>(std::numeric_limits<To>::lowest());
    constexpr From above = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * From(2);
    if (x >= above) return std::numeric_limits<To>::max();
    if (x <= low) return std::numeric_limits<To>::lowest();
    return x == x ? static_cast<To>(x) : To(0);
  } else if constexpr (is_half<To>) {
    if constexpr (std::is_same_v<From, float>) return To(x);
    else return To(to_odd_float(static_cast<double>(x)));
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace shard

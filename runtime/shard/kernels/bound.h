// The bounds of clip in the type of arithmetic of a kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "shard/core/dims.h"

namespace shard {

/// A bound as a C: for integers the nearest one inside the interval, clamped to the range of C.
template <class C>
C bound(const Scalar& value, bool lower) {
  if constexpr (std::is_floating_point_v<C>) {
    return value.to<C>();
  } else {
    using Limits = std::numeric_limits<C>;
    if (value.is_integer())
      return static_cast<C>(std::clamp<int64_t>(value.to<int64_t>(), Limits::lowest(), Limits::max()));
    const double real = lower ? std::ceil(value.to<double>()) : std::floor(value.to<double>());
    if (real <= static_cast<double>(Limits::lowest())) return Limits::lowest();
    if (real >= static_cast<double>(Limits::max())) return Limits::max();
    return static_cast<C>(real);
  }
}

}  // namespace shard

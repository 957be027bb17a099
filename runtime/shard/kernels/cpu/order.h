// The order of elements in kernels that sort.
#pragma once

#include "shard/kernels/cpu/value.h"

namespace shard::cpu {

/// A strict weak order of all values: NaNs are equal to each other and larger than other values.
template <class T>
bool is_less(T a, T b) {
  if constexpr (is_float<T>) {
    const auto x = static_cast<Compute<T>>(a);
    const auto y = static_cast<Compute<T>>(b);
    return std::isnan(y) ? !std::isnan(x) : x < y;
  } else {
    return a < b;
  }
}

}  // namespace shard::cpu

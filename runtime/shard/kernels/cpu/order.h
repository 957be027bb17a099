// The order of elements in kernels that sort.
#pragma once

#include <bit>
#include <cstdint>

#include "shard/kernels/cpu/value.h"

namespace shard::cpu {

#define SHARD_FORMULA_INLINE inline
#include "shard/kernels/formulas/order.inc"
#undef SHARD_FORMULA_INLINE

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

/// An integer in whose order numbers of at most 32 bits are sorted.
template <class T>
uint32_t rank_of(T value) {
  if constexpr (is_float<T>) {
    const float number = static_cast<float>(static_cast<Compute<T>>(value)) + 0.0f;  // -0 becomes 0
    return rank_of_bits(std::bit_cast<uint32_t>(number), number != number);
  } else {
    return static_cast<uint32_t>(static_cast<int32_t>(value)) ^ 0x80000000u;
  }
}

}  // namespace shard::cpu

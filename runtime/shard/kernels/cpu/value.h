// How kernels compute with each dtype: the type of arithmetic, and integer arithmetic that wraps
// instead of being undefined.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "shard/core/dtype.h"

namespace shard::cpu {

template <class T>
inline constexpr bool is_float = is_half<T> || std::is_floating_point_v<T>;

/// The type of statistics of a tensor of T.
template <class T>
using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Integer arithmetic modulo 2^bits, in unsigned types that are not promoted to int.
template <class T, bool = std::is_integral_v<T> && !std::is_same_v<T, bool>>
struct Wrap {
  using type = T;
};
template <class T>
struct Wrap<T, true> {
  using type = decltype(std::make_unsigned_t<T>() + 0u);
};

template <class C>
inline C wrap_add(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) + static_cast<W>(b));
}
template <class C>
inline C wrap_sub(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) - static_cast<W>(b));
}
template <class C>
inline C wrap_mul(C a, C b) {
  using W = typename Wrap<C>::type;
  return static_cast<C>(static_cast<W>(a) * static_cast<W>(b));
}

/// The identities of max and min.
template <class C>
constexpr C lowest() {
  if constexpr (std::is_floating_point_v<C>) return -std::numeric_limits<C>::infinity();
  else return std::numeric_limits<C>::lowest();
}
template <class C>
constexpr C highest() {
  if constexpr (std::is_floating_point_v<C>) return std::numeric_limits<C>::infinity();
  else return std::numeric_limits<C>::max();
}

}  // namespace shard::cpu

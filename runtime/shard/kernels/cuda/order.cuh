// The order of elements on CUDA, as that of unsigned integers (their keys), for kernels that sort and select.
#pragma once

#include "shard/kernels/cuda/cuda_types.cuh"

namespace shard::cuda {

#include "shard/kernels/formulas/order.inc"

/// The type in which elements are sorted: bools are bytes that are 0 or 1.
template <class T>
using sortable_t = std::conditional_t<std::is_same_v<T, bool>, uint8_t, device_t<T>>;

template <class D>
using Key = std::conditional_t<(sizeof(D) > 4), uint64_t, uint32_t>;
/// The lowest bits of a key, which tell keys apart; the others are 0.
template <class D>
inline constexpr int kKeyBits = 8 * static_cast<int>(sizeof(D));
/// The largest key: NaN has it in rising order.
template <class D>
inline constexpr Key<D> kLastKey = static_cast<Key<D>>(~Key<D>{0} >> (8 * sizeof(Key<D>) - kKeyBits<D>));

/// Of keys, the smaller one is first in order; equal elements have equal ones.
template <class D>
__device__ __forceinline__ Key<D> key_of(D value, bool descending) {
  using Bits = std::conditional_t<sizeof(D) == 1, uint8_t, std::conditional_t<sizeof(D) == 2, uint16_t, Key<D>>>;
  Bits bits;
  memcpy(&bits, &value, sizeof(D));
  if constexpr (!std::is_integral_v<D>) {
    const auto number = load(value);
    bits = rank_of_bits(number == 0 ? Bits{0} : bits, number != number);
  } else if constexpr (std::is_signed_v<D>) {
    bits = static_cast<Bits>(bits ^ (Bits{1} << (kKeyBits<D> - 1)));
  }
  return descending ? kLastKey<D> - Key<D>{bits} : Key<D>{bits};
}

/// Whether an element is NaN.
template <class D>
__device__ __forceinline__ bool is_nan(D value) {
  if constexpr (std::is_integral_v<D>) return false;
  else return load(value) != load(value);
}

}  // namespace shard::cuda

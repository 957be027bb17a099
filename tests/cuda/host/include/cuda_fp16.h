// float16 of the host model: the type of the runtime, whose conversions round to nearest even too.
#pragma once

#include <bit>

#include "shard/core/float16.h"

using __half = shard::float16;

inline float __half2float(__half value) { return static_cast<float>(value); }
/// Inlined, and through its bits, so that the caller is what stores the result: GCC's -fsanitize=thread does not see the store of a
/// class that a function returns.
__attribute__((always_inline)) inline __half __float2half_rn(float value) {
  return std::bit_cast<__half>(std::bit_cast<unsigned short>(__half(value)));
}

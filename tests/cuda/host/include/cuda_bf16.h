// bfloat16 of the host model: the type of the runtime, whose conversions round to nearest even too.
#pragma once

#include <bit>

#include "shard/core/float16.h"

using __nv_bfloat16 = shard::bfloat16;

inline float __bfloat162float(__nv_bfloat16 value) { return static_cast<float>(value); }
/// Inlined, and through its bits, so that the caller is what stores the result: GCC's -fsanitize=thread does not see the store of a
/// class that a function returns.
__attribute__((always_inline)) inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  return std::bit_cast<__nv_bfloat16>(std::bit_cast<unsigned short>(__nv_bfloat16(value)));
}

// bfloat16 of the host model: the type of the runtime, whose conversions round to nearest even too.
#pragma once

#include "shard/core/float16.h"

using __nv_bfloat16 = shard::bfloat16;

inline float __bfloat162float(__nv_bfloat16 value) { return static_cast<float>(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }

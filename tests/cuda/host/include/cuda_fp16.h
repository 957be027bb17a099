// float16 of the host model: the type of the runtime, whose conversions round to nearest even too.
#pragma once

#include "shard/core/float16.h"

using __half = shard::float16;

inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __float2half_rn(float value) { return __half(value); }

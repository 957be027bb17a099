// Element-wise reduction of host buffers in a fixed order, so that every rank that computes it gets
// the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "shard/core/dtype.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// out[i] = inputs[0][i] (+) inputs[1][i] (+) ..., in this order; 16-bit floats accumulate in float and round once; avg
/// divides by the number of inputs; any and all count nonzero as true. `out` may be one of the inputs.
void reduce_in_order(void* out, std::span<const void* const> inputs, int64_t count, DType dtype, ReduceType type);

/// Fills `count` elements with the identity of a reduction of `type`: 0, 1, the lowest or highest
/// value.
void fill_identity(void* data, int64_t count, DType dtype, ReduceType type);

}  // namespace shard

// Converts one-element tensors to numbers that a program can branch on.
#pragma once

#include "shard/core/export.h"
#include "shard/core/tensor.h"

namespace shard {

/// The value of a tensor with one element, of any shape: an integer for integer dtypes and bool,
/// else a double. Throws shape_mismatch for any other number of elements.
///
/// For a distributed tensor the call is collective over the *world*: it reduces a pending reduction
/// and gathers a sharded element, and ranks outside the mesh get the value too, so that all ranks
/// take the same branch. The call is traced as the op `item`, and CommPolicy applies to what it
/// sends.
SHARD_API Scalar item(const Tensor& tensor);
/// item(tensor) != 0, for use as a condition. Collective like item().
SHARD_API bool is_true(const Tensor& tensor);

}  // namespace shard

// From one-element tensors to numbers that a program can branch on.
#pragma once

#include "core/tensor.h"

namespace shard {

/// The value of a tensor with one element, of any shape: an integer for integer dtypes and bool, else a double. Throws
/// shape_mismatch for another number of elements.
///
/// For a distributed tensor it is collective over the *world*: a pending reduction is done, a sharded element is gathered, and
/// ranks outside the mesh get the value too, so that all take the same branch. It is traced as the op `item`, and CommPolicy
/// applies to what it sends.
Scalar item(const Tensor& tensor);
/// item(tensor) != 0: what a program would ask of a tensor in a condition. Collective in the same way.
bool is_true(const Tensor& tensor);

}  // namespace shard

// Tensors for tests of kernels: random ones, copies on a device, and the differences between two.
// The cases are in conformance_cases.h.
#pragma once

#include <string>

#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"

namespace shard::testing {

/// A CPU tensor of values that every dtype can represent: whole numbers in [0, 3] for integers,
/// quarters in [-2, 2] for floats. The same seed draws the same values.
SHARD_API DenseTensor random_tensor(const Dims& dims, DType dtype, unsigned seed);

/// A copy of `tensor` on `device`.
SHARD_API DenseTensor copy_to(Device device, const DenseTensor& tensor);

/// Empty when both tensors, on any devices, have the same meta and every element of `actual` is
/// within one rounding of the sums and products that kernels build it from; integers are compared
/// exactly, and NaN equals NaN. Otherwise a sentence.
SHARD_API std::string difference(const DenseTensor& actual, const DenseTensor& expected);

}  // namespace shard::testing

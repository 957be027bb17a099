// What the instructions of mma.cuh compute, beside their portable variants.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"

namespace shard::cuda {

/// The product of x and y [16, 16], two matrices of bfloat16 or float16 on a device, as float32 [16, 16]: by tensor cores where the
/// device has them, or by the portable variants, which the attention of older devices and the model of CUDA use; as numbers of tf32 where
/// `wide`. For tests.
SHARD_API DenseTensor multiply_tile(const DenseTensor& x, const DenseTensor& y, bool wide, bool portable);

}  // namespace shard::cuda

// Pooling by cuDNN.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/pool.h"

namespace shard::cuda {

/// The largest elements or the means of windows of x. Returns false, with nothing written, where cuDNN was not found at build time or
/// is not there, or has no such pooling: for windows that are adaptive or have paddings that differ on two sides, for boxes that are parts of
/// images, and for means of 16 bits, of which it is not documented in what they are summed. No tensor is empty.
bool pool_by_cudnn(const cpu::Pooled& pooled, bool max, const DenseTensor& x, const ShardBox& images,
                   const ShardBox& outputs, const DenseTensor& out);

/// The gradient of means. That of largest elements is not cuDNN's: which of equal elements it takes is not documented.
bool mean_pool_grad_by_cudnn(const cpu::Pooled& pooled, const DenseTensor& x, const ShardBox& images,
                             const DenseTensor& out_grad, const ShardBox& outputs, const DenseTensor& x_grad);

}  // namespace shard::cuda

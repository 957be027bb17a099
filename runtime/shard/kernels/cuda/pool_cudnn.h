// Pooling by cuDNN: means. Maxima are not, because cuDNN writes the lowest finite number where all elements of a window are -inf, and does
// not document which of equal elements has the gradient.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/kernels/cpu/pool.h"

namespace shard::cuda {

/// The means of windows of x. Returns false, with nothing written, where cuDNN was not found at build time or
/// is not there, or has no such pooling: for windows that are adaptive or have paddings that differ on two sides, for boxes that are parts of
/// images, for addresses that are not multiples of 16, and for 16 bits, of which it is not documented in what they are summed. No tensor is empty.
bool mean_pool_by_cudnn(const cpu::Pooled& pooled, const DenseTensor& x, const ShardBox& images,
                        const ShardBox& outputs, const DenseTensor& out);

/// The gradient of these means.
bool mean_pool_grad_by_cudnn(const cpu::Pooled& pooled, const DenseTensor& x, const ShardBox& images,
                             const DenseTensor& out_grad, const ShardBox& outputs, const DenseTensor& x_grad);

}  // namespace shard::cuda

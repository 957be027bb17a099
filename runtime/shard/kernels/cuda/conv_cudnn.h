// Convolutions by cuDNN.
#pragma once

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/conv.h"

namespace shard::cuda {

/// One pass of a convolution by an algorithm of cuDNN whose results are the same in each run, in full precision (no TF32). Returns false,
/// with nothing written, where cuDNN was not found at build time or is not there, or has none for this convolution: for paddings that
/// differ on two sides, and what it does not support. No tensor is empty.
bool convolve_by_cudnn(const OpContext& ctx, cpu::ConvPass pass, const cpu::Convolution& conv, const DenseTensor& input,
                       const DenseTensor& filter, const DenseTensor& output);

}  // namespace shard::cuda

// Helpers of the gradients that are composites of other ops.
#pragma once

#include "shard/core/tensor.h"

namespace shard::gradients {

/// The gradient of an argument of shape `dims` that was broadcast to the shape of `grad`: the sums
/// over the dims that it lacks or has with size 1. `grad` itself where the shapes are equal.
Tensor sum_to(const Tensor& grad, const Dims& dims);

/// `grad`, whose shape broadcasts to that of `x`, expanded to the shape of x. On a mesh it is
/// sharded like x. No element of x is read.
Tensor spread(const Tensor& grad, const Tensor& x);

/// `x` in the dtype in which kernels compute: float32 where x has 16 bits. For gradients that
/// replace a kernel.
Tensor widened(const Tensor& x);

/// `grad`, which was computed from widened tensors, in `dtype`.
Tensor narrowed(const Tensor& grad, DType dtype);

/// `grad` times the widened `slope`, in the dtype of grad.
Tensor times(const Tensor& grad, const Tensor& slope);

/// The gradient of the argument of a softmax along `axis` that returned `out`, both widened.
Tensor softmax_argument_grad(const Tensor& out, const Tensor& out_grad, int axis);

}  // namespace shard::gradients

// local and from_local (dist/dist_tensor.h) without recording for autograd. autograd/moves.cc adds
// that.
#pragma once

#include "dist/dist_tensor.h"

namespace shard::unrecorded {

Tensor from_local(const Tensor& piece, const DistSpec* spec, const Dims& global, DType dtype);
Tensor local(const Tensor& tensor);

}  // namespace shard::unrecorded

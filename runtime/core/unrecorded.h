// Members of Tensor (core/tensor.h) without recording for autograd. autograd/moves.cc adds that.
#pragma once

#include "core/tensor.h"

namespace shard::unrecorded {

Tensor to(const Tensor& tensor, Device device);

}  // namespace shard::unrecorded

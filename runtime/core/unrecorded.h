// What members of Tensor do (core/tensor.h), without a word to autograd. autograd/moves.cc adds that.
#pragma once

#include "core/tensor.h"

namespace shard::unrecorded {

Tensor to(const Tensor& tensor, Device device);

}  // namespace shard::unrecorded

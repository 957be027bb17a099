// The public functions that change layouts (reshard/execute.h) without recording for autograd.
// autograd/moves.cc adds that.
#pragma once

#include "reshard/execute.h"

namespace shard::unrecorded {

Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap);
Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap);
std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap);
std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap);
Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source);
Tensor full(const Tensor& tensor);

}  // namespace shard::unrecorded

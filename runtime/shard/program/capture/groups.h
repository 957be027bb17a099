// Groups the outputs of a traced function that share steps, because these share a backward pass.
#pragma once

#include <vector>

#include "shard/core/tensor.h"

namespace shard::program {

/// The number of the group of each tensor, counted from 0 in their order. Tensors that have a step
/// in common, also through other tensors, are in one group. A leaf counts as a common step if three
/// or more gradients meet in it, because their sum depends on the order. The sum of two gradients
/// has the same bits in either order.
std::vector<size_t> groups_of(const std::vector<Tensor>& tensors);

}  // namespace shard::program

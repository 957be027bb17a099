// Which outputs of a traced function share steps, so that they share a backward pass.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace shard::program {

/// Tensors that have a step in common, through others too, are of one group: the number of the group of each, from 0 on in their order. A leaf
/// counts as one where three or more gradients meet in it, whose sum depends on the order; two are added with the same bits in either order.
std::vector<size_t> groups_of(const std::vector<Tensor>& tensors);

}  // namespace shard::program

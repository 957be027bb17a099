// Which outputs of a traced function share steps, so that they share a backward pass.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace shard::program {

/// Tensors that have a step in common, through others too, are of one group: the number of the group of each, from 0 on in their order. Leaves are
/// no such steps.
std::vector<size_t> groups_of(const std::vector<Tensor>& tensors);

}  // namespace shard::program

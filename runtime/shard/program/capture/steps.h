// Inspects the autograd steps that a traced tensor was computed by.
#pragma once

#include <vector>

#include "shard/autograd/node.h"

namespace shard::program {

/// True if the steps that computed a tensor still have what they saved.
bool is_whole(const Tensor& tensor);

/// For each output: the numbers of the leaves that it was computed from.
std::vector<std::vector<size_t>> reached(const std::vector<Tensor>& outputs, const std::vector<Tensor>& leaves);

}  // namespace shard::program

// What a traced tensor was computed from.
#pragma once

#include <vector>

#include "autograd/node.h"

namespace shard::program {

/// Whether the steps that made a tensor still have what they saved.
bool is_whole(const Tensor& tensor);

/// By output: the numbers of the leaves that it was computed from.
std::vector<std::vector<size_t>> reached(const std::vector<Tensor>& outputs, const std::vector<Tensor>& leaves);

}  // namespace shard::program

// What local_map does (call/local_map.h), without a word to autograd. autograd/moves.cc adds that.
#pragma once

#include "call/local_map.h"

namespace shard::unrecorded {

std::vector<Tensor> run_local_map(const detail::LocalFunction& function, std::span<const Tensor> inputs,
                                  std::span<const DistSpec* const> in_specs, std::span<const DistSpec* const> out_specs,
                                  const LocalMapOptions& options);

}  // namespace shard::unrecorded

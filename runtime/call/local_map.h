// Runs a function on the local shards of distributed tensors, as one step of a distributed program; api/local_map.h has the public function.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "dist/spec.h"

namespace shard {

/// What else local_map is told.
struct LocalMapOptions {
  /// Stands for the function in messages, traces and reports; a text that lives as long as the program.
  const char* name = "local_map";
  /// Shape and dtype of each whole output. Without them the ranks exchange the shapes of their pieces.
  std::vector<Meta> outputs = {};
};

namespace call {

/// Gets the pieces of the inputs; gives those of the outputs.
using LocalFunction = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
/// What local_map does, without recording it for autograd.
std::vector<Tensor> run_local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                                  std::span<const DistSpec* const> in_specs, std::span<const DistSpec* const> out_specs,
                                  const LocalMapOptions& options);

[[noreturn]] void fail_result_count(const LocalMapOptions& options, size_t results, size_t specs);

}  // namespace call
}  // namespace shard

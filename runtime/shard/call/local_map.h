// Runs a function on the local shards of distributed tensors, as one step of a distributed program.
// The public function is in api/local_map.h.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/tensor.h"
#include "shard/dist/spec.h"

namespace shard {

/// Options of local_map.
struct LocalMapOptions {
  /// The name of the function in messages, traces and reports. The string must live as long as the
  /// program.
  const char* name = "local_map";
  /// Shape and dtype of each global output. If empty, the ranks exchange the shapes of their local
  /// outputs.
  std::vector<Meta> outputs = {};
};

namespace call {

/// Takes the local shards of the inputs and returns the local shards of the outputs.
using LocalFunction = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
/// The implementation of local_map, which does not record the call for autograd.
SHARD_API std::vector<Tensor> run_local_map(const LocalFunction& function, std::span<const Tensor> inputs,
                                            std::span<const DistSpec* const> in_specs,
                                            std::span<const DistSpec* const> out_specs, const LocalMapOptions& options);

[[noreturn]] SHARD_API void fail_result_count(const LocalMapOptions& options, size_t results, size_t specs);

}  // namespace call
}  // namespace shard

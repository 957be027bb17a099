// Calls whose local shards are float32 where their tensors are 16-bit floats
// (CallPlan::in_float32). Kernels get all 16-bit arguments as float32, and their results are
// converted to the dtypes of the shards.
#pragma once

#include <span>
#include <vector>

#include "shard/call/plan.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"
#include "shard/core/op_context.h"

namespace shard::call {

/// Converts the local arguments and the local results of one call.
class SHARD_API Float32Call {
 public:
  /// Replaces 16-bit tensors among `arguments`, which are the arguments of `plan`, by float32
  /// copies.
  Float32Call(const OpContext& ctx, const CallPlan& plan, std::span<DenseTensor> arguments);
  /// Converts flat output `o`, as returned by the kernel, to the dtype of its shard. If the kernel
  /// wrote it into a converted argument, it is copied back to the original argument.
  DenseTensor output(size_t o, const DenseTensor& given) const;

 private:
  struct Argument {
    DenseTensor from, to;
  };
  const OpContext& ctx_;
  const CallPlan& plan_;
  std::vector<Argument> converted_;
};

}  // namespace shard::call

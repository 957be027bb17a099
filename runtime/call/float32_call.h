// Calls whose shards are float32 where their tensors are 16-bit floats (CallPlan::in_float32): kernels get all 16-bit arguments in float32, and
// what they give is converted to the dtypes of the shards.
#pragma once

#include <span>
#include <vector>

#include "call/plan.h"
#include "core/dense_tensor.h"
#include "core/op_context.h"

namespace shard::call {

/// Converts the local arguments of one call, and what it gives.
class Float32Call {
 public:
  /// Replaces 16-bit tensors among the arguments, which are those of `plan`, by float32 ones.
  Float32Call(const OpContext& ctx, const CallPlan& plan, std::span<DenseTensor> arguments);
  /// Flat output `o`, as the kernel has given it, in the dtype of its shard. One that was written into a converted argument is copied back to that.
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

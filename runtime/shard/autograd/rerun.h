// The gradient of a function that is called again in backward: of recomputed scopes, and of
// captured functions whose gradient is recorded.
#pragma once

#include <functional>
#include <vector>

#include "shard/autograd/node.h"
#include "shard/core/random.h"
#include "shard/dist/policies.h"

namespace shard::autograd {

/// The states of all generators from which calls of this thread draw.
class RandomState {
 public:
  static RandomState now();
  void restore() const;

 private:
  RandomKey plain_, dist_;
};

/// What a step keeps to repeat a call of a function: its inputs, and the present random state and
/// policies.
class Rerun {
 public:
  using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
  Rerun(Function function, const std::vector<Tensor>& inputs);
  /// Sets the tensors that the function takes from outside beside its inputs.
  void set_reads(std::vector<SavedTensor> reads) { reads_ = std::move(reads); }

  /// Calls the function, recorded, and differentiates it: from the gradients of the step's outputs,
  /// which the function returns, to the step's edges. Throws autograd where the function returns
  /// another number of tensors than the step has outputs, or takes a tensor from outside that is
  /// not among the edges.
  void operator()(BackwardContext& context) const;

 private:
  std::vector<Tensor> call(const BackwardContext& context) const;

  Function function_;
  RandomState random_ = RandomState::now();
  Policies policies_;
  std::vector<SavedTensor> inputs_, reads_;
};

}  // namespace shard::autograd

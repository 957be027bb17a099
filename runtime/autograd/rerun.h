// The gradient of a function that is called again in backward: of recomputed scopes, and of captured functions whose gradient is recorded.
#pragma once

#include <functional>
#include <vector>

#include "autograd/node.h"
#include "core/random.h"
#include "dist/policies.h"

namespace shard::autograd {

/// The states of all generators that calls of this thread draw from.
class RandomState {
 public:
  static RandomState now();
  void restore() const;

 private:
  RandomKey plain_, dist_;
};

/// What a step keeps to call a function again as it was called: its inputs, the random state and the policies of now.
class Rerun {
 public:
  using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
  Rerun(Function function, const std::vector<Tensor>& inputs);
  /// The tensors that the function takes from outside beside its inputs.
  void set_reads(std::vector<SavedTensor> reads) { reads_ = std::move(reads); }

  /// Calls the function, recorded, and goes through that backwards: from the gradients of the step's outputs, which the function returns, to
  /// its edges. Throws autograd where the function returns another number of tensors than the step has outputs, or takes something from
  /// outside that is none of the edges.
  void operator()(Pass& pass) const;

 private:
  std::vector<Tensor> call(const Pass& pass) const;

  Function function_;
  RandomState random_ = RandomState::now();
  Policies policies_;
  std::vector<SavedTensor> inputs_, reads_;
};

}  // namespace shard::autograd

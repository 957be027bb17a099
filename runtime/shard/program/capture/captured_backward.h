// The gradients of a captured function's outputs: what the autograd step of a call saves, and how
// it runs the backward program or calls the function again.
#pragma once

#include <optional>
#include <span>

#include "shard/autograd/rerun.h"
#include "shard/program/capture/captured_entry.h"

namespace shard::program {

/// The state that the step of a call keeps for create_graph, where the gradient itself is recorded.
/// A program has no second gradient, so the function is called again instead.
class EagerBackward {
 public:
  /// Construct it before the program runs.
  EagerBackward(const Entry& entry, const BackwardPart& part, const Arguments& arguments);
  void operator()(autograd::BackwardContext& context) const;

 private:
  void check_unwritten() const;

  const Entry& entry_;
  std::optional<autograd::Rerun> rerun_;
  std::vector<uint64_t> versions_;
};

/// The autograd step of those outputs of a call that share a backward pass.
class Backward {
 public:
  /// `values` are the residuals: what the forward program returned in addition to its outputs.
  Backward(std::shared_ptr<Entry> entry, size_t step, EagerBackward eager, const Arguments& arguments,
           std::span<const Tensor> values, RandomStart random);
  void operator()(autograd::BackwardContext& context) const;

 private:
  struct Saved {
    Saved() = default;
    explicit Saved(const Tensor& saved) : tensor(saved), version(saved.defined() ? saved.version() : 0) {}
    Tensor tensor;
    uint64_t version = 0;
  };

  Arguments arguments_of(const BackwardPart& part, const std::vector<Tensor>& gradients) const;
  void check_versions(const BackwardPart& part) const;
  static void check_version(const Saved& saved, std::string_view name);

  std::shared_ptr<Entry> entry_;
  size_t step_;
  EagerBackward eager_;
  RandomStart random_;
  // By number among the residuals (Split::residuals) and sources of the split.
  std::vector<Saved> values_, sources_;
};

}  // namespace shard::program

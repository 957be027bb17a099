// Autograd data of leaves: their gradient, hooks, and the step in which recorded computations end.
#pragma once

#include "shard/autograd/autograd.h"
#include "shard/autograd/node.h"

namespace shard::autograd {

class LeafNode;

/// The history of a tensor until an in-place op gave it another buffer: views share the old one.
struct PreviousHistory {
  const Storage* other;  // the buffer that it got
  OwnedEdge history;
  Meta meta;  // before
};

/// Data of a leaf, of another tensor that has hooks or whose gradient is retained, or of one that
/// has had other buffers.
struct LeafExtra final : GradExtra {
  ~LeafExtra() override;

  Tensor gradient;
  GradLayout layout = GradLayout::of_leaf;
  LeafNode* node = nullptr;                      // kept from one recorded computation to the next
  std::vector<std::pair<uint64_t, Hook>> hooks;  // of a leaf
  // Of a tensor that is not a leaf. Steps own these hooks, including those of values that the
  // tensor had before an in-place op.
  std::vector<std::pair<uint64_t, std::weak_ptr<Hook>>> step_hooks;
  std::shared_ptr<Hook> retain;  // sets `gradient`; moves with the tensor to the step of each new value
  std::vector<PreviousHistory> previous_histories;  // the latest is last
};
LeafExtra& extra_of(const Tensor& tensor);
LeafExtra* extra_or_null(const Tensor& tensor);

/// Called for every step that makes a new value of `x`, before `x` has it; null where that value
/// has no step. The hook that retains the gradient of `x` (retain_grad) moves from its present step
/// to that one.
void move_retained(TensorImpl& x, Node* to, uint32_t output);

/// The end of recorded computations at a leaf. While steps refer to it, it holds the leaf;
/// otherwise the leaf holds it, for the next computation.
class LeafNode final : public Node {
 public:
  LeafNode();
  /// Called for a node to which nothing refers.
  void wake(const Tensor& leaf);
  bool awake() const { return leaf_.defined(); }
  const Tensor* leaf() const override { return &leaf_; }
  /// The engine accumulates gradients of leaves itself.
  void run(BackwardContext&) override {}

 private:
  void dispose() override;

  Tensor leaf_;
};

/// The edge to the node of a leaf.
OwnedEdge edge_of_leaf(const Tensor& leaf);

/// The final layout of the gradient of a tensor with layout `spec`: that of the tensor, but
/// replicated where it is a pending reduction.
const DistSpec* gradient_layout(const DistSpec* spec);
/// The layout in which a leaf keeps a gradient with GradLayout::as_is: a pending sum stays pending
/// where the leaf is not; otherwise that of the leaf.
const DistSpec* kept_layout(const DistSpec* gradient, const DistSpec* leaf);

}  // namespace shard::autograd

// What leaves keep: their gradient, hooks, and the step in which recorded computations end.
#pragma once

#include "autograd/autograd.h"
#include "autograd/node.h"

namespace shard::autograd {

class LeafNode;

/// The history of a tensor until an op in place gave it another buffer: views share the one it had.
struct Former {
  const Storage* other;  // the buffer that it got
  OwnedEdge history;
  Dims dims;  // that it had
};

/// Of a leaf, of another tensor that has hooks or whose gradient is retained, or of one that has had other buffers.
struct LeafExtra final : GradExtra {
  ~LeafExtra() override;

  Tensor gradient;
  GradLayout layout = GradLayout::of_leaf;
  LeafNode* node = nullptr;                      // kept from one recorded computation to the next
  std::vector<std::pair<uint64_t, Hook>> hooks;  // of a leaf
  // Of a tensor that is no leaf. Steps own these hooks: those of values that the tensor had before an op in place, too.
  std::vector<std::pair<uint64_t, std::weak_ptr<Hook>>> step_hooks;
  std::shared_ptr<Hook> retain;  // sets `gradient`; it moves on with the tensor to the step of each new value
  std::vector<Former> formers;   // the latest last
};
LeafExtra& extra_of(const Tensor& tensor);
LeafExtra* extra_or_null(const Tensor& tensor);

/// Every step that makes a new value of `x` is made known here, before `x` has it: null where that value has none. What keeps the gradient
/// of `x` (retain_grad) leaves its present step.
void move_retained(TensorImpl& x, Node* to, uint32_t output);

/// The end of recorded computations at a leaf. While they refer to it, it holds the leaf; else the leaf holds it, for the next ones.
class LeafNode final : public Node {
 public:
  LeafNode();
  /// Of a node to which nobody refers.
  void wake(const Tensor& leaf);
  bool awake() const { return leaf_.defined(); }
  const Tensor* leaf() const override { return &leaf_; }
  /// The engine gathers gradients itself.
  void run(Pass&) override {}

 private:
  void dispose() override;

  Tensor leaf_;
};

/// The edge to the node of a leaf.
OwnedEdge edge_of_leaf(const Tensor& leaf);

/// The layout that the gradient of a tensor with layout `spec` ends in: as the tensor, and whole where it is a pending reduction.
const DistSpec* gradient_layout(const DistSpec* spec);
/// The layout in which a leaf keeps a gradient as it is: where that is a pending sum and the leaf is not, it stays one; else as the leaf.
const DistSpec* kept_layout(const DistSpec* gradient, const DistSpec* leaf);

}  // namespace shard::autograd

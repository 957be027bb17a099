// What leaves keep: their gradient, hooks, and the step in which recorded computations end.
#pragma once

#include "autograd/autograd.h"
#include "autograd/node.h"

namespace shard::autograd {

/// The history of a tensor until an op in place gave it another buffer: views share the one it had.
struct Former {
  const Storage* other;  // the buffer that it got
  OwnedEdge history;
  Dims dims;  // that it had
};

/// Of a leaf, of another tensor whose gradient is retained, or of one that has had other buffers.
struct LeafExtra final : GradExtra {
  Tensor gradient;
  std::shared_ptr<Tensor> retained;  // of a tensor that is no leaf
  GradLayout layout = GradLayout::of_leaf;
  Node* node = nullptr;  // while recorded computations refer to it
  std::vector<std::pair<uint64_t, Hook>> hooks;
  std::vector<Former> formers;  // the latest last
};
LeafExtra& extra_of(const Tensor& tensor);
LeafExtra* extra_or_null(const Tensor& tensor);

/// The end of recorded computations at a leaf. It holds the leaf.
class LeafNode final : public Node {
 public:
  explicit LeafNode(const Tensor& leaf);
  /// The engine gathers gradients itself.
  void run(Pass&) override {}
  const Tensor& leaf() const { return leaf_; }

 private:
  ~LeafNode() override { extra_of(leaf_).node = nullptr; }

  Tensor leaf_;
};

/// The layout that the gradient of a tensor with layout `spec` ends in: as the tensor, and whole where it is a pending reduction.
const DistSpec* gradient_layout(const DistSpec* spec);
/// The layout in which a leaf keeps a gradient as it is: where that is a pending sum and the leaf is not, it stays one; else as the leaf.
const DistSpec* kept_layout(const DistSpec* gradient, const DistSpec* leaf);

}  // namespace shard::autograd

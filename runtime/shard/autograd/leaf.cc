#include "shard/autograd/leaf.h"

#include "shard/core/error.h"
#include "shard/dist/dist_tensor.h"

namespace shard::autograd {
namespace {

constexpr OpDef kLeaf = {.name = "leaf", .outputs = slots<"leaf">};

}  // namespace

LeafExtra* extra_or_null(const Tensor& tensor) { return static_cast<LeafExtra*>(tensor.get().grad.extra.get()); }

LeafExtra& extra_of(const Tensor& tensor) {
  std::unique_ptr<GradExtra>& extra = tensor.get().grad.extra;
  if (!extra) extra = std::make_unique<LeafExtra>();
  return static_cast<LeafExtra&>(*extra);
}

LeafExtra::~LeafExtra() {
  if (retain) *retain = nullptr;  // steps may outlive this object
  delete node;
}

void move_retained(TensorImpl& x, Node* to, uint32_t output) {
  const auto* const extra = static_cast<const LeafExtra*>(x.grad.extra.get());
  if (extra == nullptr || !extra->retain) return;
  if (x.grad.node) static_cast<Node&>(*x.grad.node).remove_hook(extra->retain);
  if (to != nullptr) to->add_hook(output, extra->retain, Node::Turn::last);
}

LeafNode::LeafNode() : Node(kLeaf, {}) {}

void LeafNode::wake(const Tensor& leaf) {
  leaf_ = leaf;
  const OutputInfo& known = output(0);
  const bool changed = !(known.meta == leaf.meta()) ||
                       known.spec != (leaf.is_dist() ? static_cast<const DistTensorImpl&>(leaf.get()).spec : nullptr);
  if (changed || known.device != leaf.device()) set_output(0, info_of(leaf.get()));
}

void LeafNode::dispose() {
  if (!unique())
    retain();  // the last reference may or may not have been released: there is one for the next computation
  // where this is the last handle, the leaf deletes this node with it
  const Tensor leaf = std::exchange(leaf_, {});
}

OwnedEdge edge_of_leaf(const Tensor& leaf) {
  LeafExtra& extra = extra_of(leaf);
  if (extra.node == nullptr) extra.node = new LeafNode();
  if (extra.node->awake()) extra.node->retain();
  else extra.node->wake(leaf);
  return {Ref<GradNode>::adopt(extra.node), 0};
}

const DistSpec* gradient_layout(const DistSpec* spec) {
  if (!spec->layout().has_partial()) return spec;
  Layout layout = spec->layout();
  layout.partial = {};
  return DistSpec::make(layout);
}

const DistSpec* kept_layout(const DistSpec* gradient, const DistSpec* leaf) {
  const auto keeps = [&](int axis) { return gradient->partial(axis) == ReduceType::sum && !leaf->partial(axis); };
  Layout layout = leaf->layout();
  for (int d = 0; d < layout.rank; ++d) {
    AxisList others;
    for (int i = 0; i < leaf->axes(d).size(); ++i) {
      if (!keeps(leaf->axes(d)[i])) others.push_back(leaf->axes(d)[i]);
    }
    layout.dims[static_cast<size_t>(d)] = others;
  }
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    layout.partial[static_cast<size_t>(axis)] = keeps(axis) ? std::optional(ReduceType::sum) : std::nullopt;
  }
  return layout == gradient->layout() ? gradient : DistSpec::make(layout);
}

}  // namespace shard::autograd

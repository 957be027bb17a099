#include "shard/autograd/engine.h"

#include <algorithm>

#include "shard/api/layout.h"
#include "shard/core/error.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/math.h"

namespace shard::autograd {
namespace {

Node& node_of(const Ref<GradNode>& node) { return static_cast<Node&>(*node); }

bool earlier(const Ref<GradNode>& a, const Ref<GradNode>& b) { return node_of(a).sequence() < node_of(b).sequence(); }

const DistSpec* spec_or_null(const Tensor& tensor) {
  return tensor.is_dist() ? static_cast<const DistTensorImpl&>(tensor.get()).spec : nullptr;
}

/// True if nothing else refers to the tensor or its buffer, and it is not a copy of another tensor
/// that a write would have to reach.
bool is_ours(const Tensor& tensor) {
  const Ref<Storage>& storage = tensor.get().value.storage();
  return tensor.impl()->unique() && storage->unique() && storage->detachment() == nullptr;
}

/// Adds two gradients of one tensor, in the buffer of the first one if nothing else refers to that.
void add_to(Tensor& sum, const Tensor& gradient) {
  if (!grad_enabled() && is_ours(sum) && spec_or_null(sum) == spec_or_null(gradient)) shard::add_(sum, gradient);
  else sum = shard::add(sum, gradient);
}

void check_gradient(const Tensor& gradient, const OutputInfo& info, const Node& of, const Node* from) {
  const bool fits = gradient.meta() == info.meta && gradient.is_dist() == (info.spec != nullptr);
  if (fits) return;
  const std::string maker =
      from == nullptr ? "the given gradient" : fmt::format("the gradient that [{}_grad] returned", from->op().name);
  fail(ErrorCode::autograd,
       "[backward] {} is {}, but the tensor that [{}] returned is {}{}; a gradient must have the shape and dtype of "
       "its tensor, and be distributed if the tensor is",
       maker, gradient.get().describe(), of.op().name, to_string(info.meta),
       info.spec != nullptr ? " " + info.spec->text() : "");
}

/// The gradient of a leaf that had the gradient `before`, in any layout, and gets `gradient`: in
/// the layout in which the leaf keeps it.
Tensor sum_for_leaf(const Tensor& leaf, const Tensor& before, const Tensor& gradient) {
  const DistSpec* const spec = spec_or_null(leaf);
  if (spec == nullptr) return shard::add(before, gradient);
  if (extra_of(leaf).layout == GradLayout::of_leaf) return shard::add(reshard(before, gradient_layout(spec)), gradient);
  const Tensor sum = shard::add(before, gradient);
  return reshard(sum, kept_layout(spec_or_null(sum), spec));
}

}  // namespace

void check_shape(const Tensor& tensor, const OutputInfo& recorded) {
  if (tensor.meta() == recorded.meta) return;
  fail(ErrorCode::autograd,
       "[backward] {} was {} when it was recorded, but its shape or dtype was changed in place since then under "
       "NoGrad, so its gradient does not match it. Change it where calls are recorded, before it is used, or after "
       "backward, or use an out-of-place op (reshape, transpose, cast)",
       tensor.get().describe(), to_string(recorded.meta));
}

Engine::~Engine() {
  for (const Ref<GradNode>& node : heap_) clear(node_of(node));
}

void Engine::clear(Node& node) {
  for (size_t i = 0; i < node.output_count(); ++i) node.incoming(i) = {};
  node.pass_ = nullptr;
}

void Engine::start(const Tensor& output, Tensor gradient) {
  OwnedEdge edge = edge_of(output);
  if (!edge) {
    fail(ErrorCode::autograd,
         "[backward] {} requires no gradient: it was not computed from a leaf with set_requires_grad(true), or under "
         "NoGrad",
         output.get().describe());
  }
  check_shape(output, edge.get()->output(edge.output));
  starts_.push_back({std::move(edge), std::move(gradient)});
}

void Engine::capture(const std::vector<OwnedEdge>& edges, Beyond beyond) {
  captures_ = true;
  beyond_ = beyond;
  captured_.resize(edges.size());
  for (size_t i = 0; i < edges.size(); ++i) wanted_[edges[i].get()].emplace_back(edges[i].output, i);
}

/// Steps on a path from the outputs to the captured edges. In the order of their numbers, the
/// inputs of a step precede it.
void Engine::find_needed() {
  std::vector<Node*> found;
  std::unordered_set<const Node*> seen;
  const auto visit = [&](Node* node) {
    if (seen.insert(node).second) found.push_back(node);
  };
  for (const Start& start : starts_) visit(start.edge.get());
  for (size_t i = 0; i < found.size(); ++i) {
    if (beyond_ == Beyond::stop && wanted_.contains(found[i])) continue;
    for (const Edge& edge : found[i]->edges()) {
      if (edge) visit(edge.node);
    }
  }
  std::sort(found.begin(), found.end(), [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
  for (const Node* node : found) {
    const auto leads = [&](const Edge& edge) { return edge && needed_.contains(edge.node); };
    if (wanted_.contains(node) || std::any_of(node->edges().begin(), node->edges().end(), leads)) needed_.insert(node);
  }
}

void Engine::run() {
  const GradMode mode(options_.create_graph);
  if (captures_) find_needed();
  for (Start& start : starts_) send({start.edge.get(), start.edge.output}, std::move(start.gradient), nullptr);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), earlier);
    const Ref<GradNode> next = std::move(heap_.back());
    heap_.pop_back();
    Node& node = node_of(next);
    try {
      process(node);
    } catch (...) {
      clear(node);
      throw;
    }
    clear(node);
  }
  flush();
  for (Pending& each : moving_) add_to_leaf(each.leaf, std::move(each.gradient));
}

void Engine::send(const Edge& edge, Tensor gradient, const Node* from) {
  Node& node = *edge.node;
  if (captures_ && !needed_.contains(&node)) return;
  check_gradient(gradient, node.output(edge.output), node, from);
  if (node.pass_ == nullptr) {
    node.pass_ = this;
    node.retain();
    heap_.push_back(Ref<GradNode>::adopt(&node));
    std::push_heap(heap_.begin(), heap_.end(), earlier);
  } else if (node.pass_ != this) {
    fail(ErrorCode::autograd,
         "[backward] the graph of [{}] is already in a backward pass: a hook or gradient function has started another "
         "pass over it; use create_graph, or compute what it needs with shard::grad beforehand",
         node.op().name);
  }
  Tensor& sum = node.incoming(edge.output);
  if (sum.defined()) add_to(sum, gradient);
  else sum = std::move(gradient);
}

void Engine::process(Node& node) {
  if (const Tensor* const leaf = node.leaf()) {
    check_shape(*leaf, node.output(0));
    take_captures(node);
    if (!captures_) finish_leaf(*leaf, std::move(node.incoming(0)));  // moved, so that a leaf can keep its buffer
    return;
  }
  run_hooks(node);
  take_captures(node);
  if (captures_ && std::none_of(node.edges().begin(), node.edges().end(),
                                [&](const Edge& edge) { return edge && needed_.contains(edge.node); }))
    return;
  if (node.released()) {
    fail(ErrorCode::autograd,
         "[{}_grad] the tensors that [{}] saved were freed by an earlier backward. Set retain_graph in that backward, "
         "or compute the result again",
         node.op().name, node.op().name);
  }
  BackwardContext context(node, captures_ ? &needed_ : nullptr);
  node.run(context);
  if (!options_.retain_graph && !options_.create_graph) node.release();
  clear(node);  // before the gradients are added to others, so that these can be added to in place
  for (auto& [edge, gradient] : context.grads_) send(edge, std::move(gradient), &node);
}

void Engine::run_hooks(Node& node) {
  if (!node.hooks_) return;
  const std::vector<Node::OutputHook> hooks = *node.hooks_;
  for (const Node::OutputHook& hook : hooks) {
    Tensor& gradient = node.incoming(hook.output);
    const Hook function = *hook.function;  // which may remove itself
    if (!gradient.defined() || !function) continue;
    const Tensor other = function(gradient);
    if (!other.defined()) continue;
    check_gradient(other, node.output(hook.output), node, nullptr);
    gradient = other;
  }
}

void Engine::take_captures(Node& node) {
  const auto found = wanted_.find(&node);
  if (found == wanted_.end()) return;
  for (const auto& [output, i] : found->second) captured_[i] = node.incoming(output);
}

void Engine::finish_leaf(const Tensor& leaf, Tensor gradient) {
  const DistSpec* const from = spec_or_null(gradient);
  const DistSpec* to = nullptr;
  if (from != nullptr)
    to = extra_of(leaf).layout == GradLayout::as_is ? kept_layout(from, spec_or_null(leaf))
                                                    : gradient_layout(spec_or_null(leaf));
  if (from == to) return add_to_leaf(leaf, std::move(gradient));
  if (options_.create_graph || options_.bucket_bytes <= 0) return add_to_leaf(leaf, reshard(gradient, to));
  // Global bytes, which are equal on all ranks.
  bucket_bytes_ += static_cast<int64_t>(gradient.meta().bytes());
  bucket_.push_back({leaf, std::move(gradient), to});
  if (bucket_bytes_ >= options_.bucket_bytes) flush();
}

/// Starts to reshard the gradients in the bucket; backward continues meanwhile.
void Engine::flush() {
  if (bucket_.empty()) return;
  std::vector<Tensor> gradients;
  std::vector<const DistSpec*> specs;
  for (Pending& each : bucket_) {
    gradients.push_back(std::move(each.gradient));
    specs.push_back(each.to);
  }
  const std::vector<Tensor> moved = reshard_async(gradients, specs);
  for (size_t i = 0; i < bucket_.size(); ++i) moving_.push_back({std::move(bucket_[i].leaf), moved[i], specs[i]});
  bucket_.clear();
  bucket_bytes_ = 0;
}

void Engine::add_to_leaf(const Tensor& leaf, Tensor gradient) {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt_gradient(leaf);
  LeafExtra& extra = extra_of(leaf);
  const std::vector<std::pair<uint64_t, Hook>> hooks = extra.hooks;
  const DistSpec* const to = spec_or_null(gradient);
  for (const auto& [id, hook] : hooks) {
    const Tensor other = hook(gradient);
    if (!other.defined()) continue;
    check_gradient(other, info_of(leaf.get()), *extra.node, nullptr);
    gradient = to == nullptr ? other : reshard(other, to);
  }
  if (!extra.gradient.defined()) {
    // A shared buffer, such as that of the gradient that was passed to backward, must not be added
    // to later.
    extra.gradient = is_ours(gradient) || options_.create_graph ? std::move(gradient) : shard::assign(gradient);
  } else if (!options_.create_graph && spec_or_null(extra.gradient) == spec_or_null(gradient)) {
    shard::add_(extra.gradient, gradient);
  } else {
    extra.gradient = sum_for_leaf(leaf, extra.gradient, gradient);
  }
}

}  // namespace shard::autograd

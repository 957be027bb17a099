#include "shard/autograd/record.h"

#include <algorithm>

#include "shard/autograd/boundary.h"
#include "shard/autograd/leaf.h"
#include "shard/core/error.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/shape.h"

namespace shard::autograd {
namespace {

constexpr OpDef kView = {.name = "view", .inputs = slots<"x">, .outputs = slots<"out">};
constexpr OpDef kWritten = {.name = "write_through_view", .inputs = slots<"x">, .outputs = slots<"out">};

/// The storage that finally holds the bytes of a tensor: for a view of a copy that is kept in sync
/// with its source, that of the source.
const Storage* source_of(const TensorImpl& x) {
  const Storage* storage = x.value.storage().get();
  while (storage->detachment() != nullptr && storage->detachment()->refresh)
    storage = storage->detachment()->source.get();
  return storage;
}

bool shares(const TensorImpl& a, const TensorImpl& b) {
  return a.value.storage() == b.value.storage() || source_of(a) == source_of(b);
}

void set_history(TensorImpl& x, Ref<GradNode> node, uint32_t output) {
  if (x.grad.extra) move_retained(x, static_cast<Node*>(node.get()), output);
  x.grad.requires_grad = static_cast<bool>(node);
  x.grad.output = output;
  x.grad.node = std::move(node);
}

/// Sets the history of `x` to a reshape of the tensor of `edge`, which is `of` and has the same
/// bytes. Bytes that are read in another dtype have no gradient.
void link_reshaped(TensorImpl& x, const OpDef& op, OwnedEdge edge, const Meta& of) {
  if (!is_floating(x.meta().dtype)) return set_history(x, nullptr, 0);
  const auto backward = [shape = IntArray(of.dims), dtype = of.dtype](BackwardContext& context) {
    const Tensor& grad = context.grad(0);
    if (grad.dtype() != dtype) {
      fail(ErrorCode::autograd,
           "[{}] a tensor and a view of it are written in place, but their dtypes are {} and {}: the bits of one have "
           "no gradient in the other; use cast, or pass detach() of the view",
           context.node().op().name, to_string(grad.dtype()), to_string(dtype));
    }
    context.set_grads<0>(shard::reshape(grad, shape));
  };
  const Node& from = *edge.get();  // the new step owns it
  auto node = new FunctionNode<decltype(backward)>(op, {edge.leak()}, backward);
  set_history(x, Ref<GradNode>::adopt(node), 0);
  if (Boundary* const boundary = Boundary::current()) boundary->add_history(x.grad.node, from);
  node->set_output(0, info_of(x));
}

/// Called before a write in place is recorded, which may have given `target` another buffer than
/// its views have.
void keep_previous_history(const Tensor& target) {
  const TensorImpl& x = target.get();
  if (x.grad.root || !x.grad.node) return;
  const OutputInfo &before = static_cast<Node&>(*x.grad.node).output(x.grad.output), now = info_of(x);
  if (before.meta == now.meta && before.spec == now.spec) return;
  extra_of(target).previous_histories.push_back({x.value.storage().get(), {x.grad.node, x.grad.output}, before.meta});
}

/// A view of a buffer that its root no longer has gets the history that the root had then.
void sync_previous_history(TensorImpl& view) {
  GradState& state = view.grad;
  const Storage* const buffer = source_of(view);
  const auto* const extra = static_cast<const LeafExtra*>(state.root->grad.extra.get());
  if (extra == nullptr || buffer->detachment() == nullptr || state.root_version == buffer->version()) return;
  const auto found = std::find_if(
      extra->previous_histories.rbegin(), extra->previous_histories.rend(),
      [&](const PreviousHistory& previous) { return previous.other == buffer->detachment()->origin.get(); });
  if (found == extra->previous_histories.rend()) return;
  state.root_version = buffer->version();
  link_reshaped(view, kView, OwnedEdge(found->history), found->meta);
}

/// The destination of the gradient of a tensor, independent of the scope in which it is used.
OwnedEdge edge_outside(const Tensor& tensor) {
  const NoBoundary no_boundary;
  return edge_of(tensor);
}

/// A view whose buffer was written since its history was up to date gets the history of its base.
void sync_view(TensorImpl& view) {
  GradState& state = view.grad;
  if (!shares(view, *state.root)) return sync_previous_history(view);
  const uint64_t version = source_of(*state.root)->version();
  if (state.root_version == version) return;
  state.root_version = version;
  OwnedEdge edge = edge_outside(Tensor(state.root));
  if (edge) link_reshaped(view, kView, std::move(edge), state.root->meta());
  else set_history(view, nullptr, 0);
}

}  // namespace

bool view_requires_grad(const TensorImpl& view) {
  sync_view(const_cast<TensorImpl&>(view));
  return view.grad.requires_grad || view.grad.root->grad.requires_grad;
}

OwnedEdge edge_of(const Tensor& tensor) {
  TensorImpl& impl = tensor.get();
  if (impl.grad.root) sync_view(impl);
  OwnedEdge edge;
  if (!is_floating(impl.meta().dtype)) return edge;  // an op in place, which is not recorded, has given it such a dtype
  if (impl.grad.node) edge = {impl.grad.node, impl.grad.output};
  else if (impl.grad.requires_grad) edge = edge_of_leaf(tensor);
  Boundary* const boundary = Boundary::current();
  return edge && boundary != nullptr ? boundary->cross(std::move(edge)) : edge;
}

bool shares_root(const TensorImpl& view) { return view.grad.root && shares(view, *view.grad.root); }

void mark_view(const char* op, const Tensor& x, const Tensor& out) {
  if (!x.defined() || !out.defined()) return;
  TensorImpl& from = *x.impl();
  TensorImpl& view = *out.impl();
  if (&from == &view || !shares(from, view)) return;
  const bool nested = from.grad.root && shares(from, *from.grad.root);
  view.grad.root = nested ? from.grad.root : x.impl();
  view.grad.root_version = source_of(*view.grad.root)->version();
  const ViewChain before = nested ? from.grad.views : ViewChain();
  view.grad.views = {static_cast<uint8_t>(std::min(before.count + 1, 255)), {op, before.ops[0], before.ops[1]}};
}

Recording::Recording(CallSite site, const OpDef& op, std::vector<OwnedEdge> inputs) : Recording(site, op, false) {
  begins_.push_back(0);
  for (OwnedEdge& edge : inputs) edges_.push_back(edge.leak());
}

Recording::~Recording() {
  for (const Edge& edge : edges_) {
    if (edge) Ref<GradNode>::adopt(edge.node);
  }
}

void Recording::add_flat(const Tensor& x) {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt(x);
  inputs_.push_back(&x);
  edges_.push_back(x.defined() ? edge_of(x).leak() : Edge());
}

void Recording::add(const Tensor& x) {
  if (!begins_.empty()) begins_.push_back(static_cast<uint16_t>(edges_.size()));
  add_flat(x);
}

void Recording::add(const std::vector<Tensor>& list) {
  // Until the first list, each slot is one tensor.
  if (begins_.empty()) {
    for (size_t slot = 0; slot < edges_.size(); ++slot) begins_.push_back(static_cast<uint16_t>(slot));
  }
  begins_.push_back(static_cast<uint16_t>(edges_.size()));
  for (const Tensor& x : list) add_flat(x);
}

std::span<const Tensor* const> Recording::slot(size_t i) const {
  const size_t first = begins_.empty() ? i : begins_[i];
  const size_t end = begins_.empty() ? i + 1 : i + 1 < begins_.size() ? begins_[i + 1] : inputs_.size();
  return std::span<const Tensor* const>(inputs_.data(), inputs_.size()).subspan(first, end - first);
}

bool Recording::writes(const AliasDef& alias) const {
  return alias.kind == AliasDef::Kind::written_view || (inplace_ && alias.kind == AliasDef::Kind::inplace);
}

void Recording::check_targets() const {
  for (const AliasDef& alias : op_.aliases) {
    if (!writes(alias)) continue;
    const auto input = static_cast<size_t>(alias.input);
    for (const Tensor* x : slot(input)) {
      if (x->defined()) check_target(*x, op_.inputs[input].name, alias.kind == AliasDef::Kind::written_view);
    }
  }
}

void Recording::check_target(const Tensor& x, std::string_view name, bool written_view) const {
  const std::string_view op = inplace_ ? op_.inplace_name : op_.name;
  check_written(op, name, x);
  if (!written_view || !x.get().grad.requires_grad) return;
  fail(ErrorCode::autograd,
       "[{}] cannot write argument '{}' ({}): it requires a gradient, but this op has no gradient for what it writes "
       "there; pass detach() of it",
       op, name, x.get().describe());
}

void check_written(std::string_view op, std::string_view name, const Tensor& x) {
  const TensorImpl& impl = x.get();
  const GradState& state = impl.grad;
  const bool has_root = state.root && shares(impl, *state.root);
  const TensorImpl& root = has_root ? *state.root : impl;
  const Tracer* const tracer = Tracer::current();
  const bool computed =
      // before the captured function, where it looks like a leaf
      tracer != nullptr && tracer->was_computed(root);
  if (root.grad.requires_grad && !root.grad.node && !computed) {
    fail(ErrorCode::autograd,
         "[{}] cannot write argument '{}' ({}): it is {}a leaf that requires a gradient, so its gradient would be that "
         "of an overwritten value. Write it under NoGrad, as optimizers do, or write a copy (assign(x))",
         op, name, impl.describe(), has_root ? "a view of " : "");
  }
  if (has_root && root.grad.requires_grad && !state.requires_grad) {
    fail(ErrorCode::autograd,
         "[{}] cannot write argument '{}' ({}): it is a view by {} that was made under NoGrad of a tensor that "
         "requires a gradient, so the gradient of that tensor would miss the write. Make the view where calls are "
         "recorded, or write under NoGrad too",
         op, name, impl.describe(), state.views.ops[0]);
  }
}

bool Recording::needs_grad(size_t slot) const {
  const size_t first = begins_.empty() ? slot : begins_[slot];
  const size_t end = begins_.empty() ? slot + 1 : slot + 1 < begins_.size() ? begins_[slot + 1] : edges_.size();
  return std::any_of(edges_.begin() + first, edges_.begin() + end,
                     [](const Edge& edge) { return static_cast<bool>(edge); });
}

bool Recording::shares_target(const Tensor& x) const {
  for (const AliasDef& alias : op_.aliases) {
    if (!writes(alias)) continue;
    for (const Tensor* target : slot(static_cast<size_t>(alias.input))) {
      if (target->defined() && shares(*target->impl(), *x.impl())) return true;
    }
  }
  return false;
}

SavedTensor Recording::save(const Tensor& x) const {
  if (x.defined() && shares_target(x)) return SavedTensor::copy_of(x);
  SavedTensor saved(x);
  if (x.is_dist() && static_cast<const DistTensorImpl&>(x.get()).owner->policies.save == SavePolicy::resharded) {
    if (!resharded_saves_) resharded_saves_ = std::make_unique<ReshardedSaves>();
    resharded_saves_->saved.emplace_back(x.impl().get(), saved.value().impl());
  }
  return saved;
}

void Recording::save_resharded_inputs() const {
  for (const auto& [input, saved] : resharded_saves_->saved) {
    for (const call::ReshardedInputs::Entry& entry : resharded_saves_->inputs.entries()) {
      // A copy that a result shares, as a view does, is written with it.
      if (entry.input != input || !entry.value.storage()->unique()) continue;
      auto& kept = static_cast<DistTensorImpl&>(*saved);
      entry.value.storage()->set_version(kept.value.storage()->version());
      kept.value = entry.value;
      kept.spec = entry.spec;
      break;
    }
  }
}

std::vector<SavedTensor> Recording::save(const std::vector<Tensor>& list) const {
  std::vector<SavedTensor> saved;
  saved.reserve(list.size());
  for (const Tensor& x : list) saved.push_back(save(x));
  return saved;
}

std::vector<SavedTensor> Recording::save_shape(const std::vector<Tensor>& list) const {
  std::vector<SavedTensor> saved;
  saved.reserve(list.size());
  for (const Tensor& x : list) saved.push_back(SavedTensor::shape_of(x));
  return saved;
}

void Recording::finish(Node* made, const Outputs& outputs, unsigned differentiable) {
  const Ref<GradNode> owner = Ref<GradNode>::adopt(made);
  Node& node = *made;
  if (resharded_saves_) save_resharded_inputs();
  const bool recorded =
      std::any_of(node.edges_.begin(), node.edges_.end(), [](const Edge& edge) { return static_cast<bool>(edge); });
  if (recorded) {
    if (!begins_.empty()) begins_.push_back(static_cast<uint16_t>(node.edges_.size()));
    node.begins_ = begins_;
    node.output_begins_ = outputs.begins;
    for (size_t i = 0; i < outputs.slots.size(); ++i) {
      const Tensor* out = outputs.slots[i];
      node.set_output(i, out != nullptr && out->defined() ? info_of(out->get()) : OutputInfo());
    }
    for (size_t slot = 0; (kept_ | kept_shapes_) >> slot != 0; ++slot) {
      const Tensor* const out = outputs.slots[node.first_output(slot)];
      const bool kept = (kept_ >> slot & 1) != 0, shape = (kept_shapes_ >> slot & 1) != 0;
      node.saved_outputs_.push_back(out == nullptr || !(kept || shape) ? SavedTensor()
                                    : kept                             ? SavedTensor::output_of(*out)
                                                                       : SavedTensor::shape_of(*out));
    }
  }
  const size_t slots = outputs.begins.empty() ? outputs.slots.size() : outputs.begins.size() - 1;
  for (size_t slot = 0; recorded && slot < slots; ++slot) {
    if ((differentiable >> slot & 1) == 0 && !inplace_) continue;
    for (size_t i = node.first_output(slot); i < node.first_output(slot) + node.outputs_of(slot); ++i) {
      const Tensor* out = outputs.slots[i];
      if (out == nullptr || !out->defined()) continue;
      const bool linked = (differentiable >> slot & 1) != 0 && is_floating(out->dtype());
      if (inplace_) rebase(*out, linked ? owner : Ref<GradNode>(), static_cast<uint32_t>(i));
      else if (linked) set_history(out->get(), owner, static_cast<uint32_t>(i));
    }
  }
  if (!inplace_) mark_views(outputs);
}

void Recording::mark_views(const Outputs& outputs) const {
  for (const AliasDef& alias : op_.aliases) {
    if (alias.kind == AliasDef::Kind::inplace) continue;
    mark_view(op_.name.data(), *slot(static_cast<size_t>(alias.input))[0],
              *outputs.slots[outputs.first(static_cast<size_t>(alias.output))]);
  }
}

/// For an in-place form whose written arguments may be lists.
void Recording::link_targets(Node* made) {
  const Ref<GradNode> owner = Ref<GradNode>::adopt(made);
  if (std::none_of(made->edges_.begin(), made->edges_.end(), [](const Edge& edge) { return static_cast<bool>(edge); }))
    return;
  uint32_t output = 0;
  for (const AliasDef& alias : op_.aliases) {
    if (!writes(alias)) continue;
    for (const Tensor* target : slot(static_cast<size_t>(alias.input))) {
      if (!target->defined()) continue;
      if (!is_floating(target->dtype())) {  // the op has given it another dtype
        rebase(*target, {}, 0);
        continue;
      }
      made->set_output(output, info_of(target->get()));
      rebase(*target, owner, output++);
    }
  }
}

void NoGradient::operator()(BackwardContext& context) const {
  fail(ErrorCode::autograd,
       "[{}] has no gradient, but an argument requires one; pass detach() of the argument, or call it under NoGrad",
       context.node().op().name);
}

UnlinkedWrite::~UnlinkedWrite() {
  if (!recording_ || std::uncaught_exceptions() > exceptions_) return;
  recording_->link_targets(new FunctionNode<NoGradient>(recording_->op_, std::move(recording_->edges_), NoGradient()));
}

void Recording::rebase(const Tensor& target, const Ref<GradNode>& node, uint32_t output) const {
  keep_previous_history(target);
  set_history(target.get(), node, output);
  rebase_root(target);
}

void rebase_root(const Tensor& target) {
  TensorImpl& x = target.get();
  GradState& state = x.grad;
  if (!state.root) return;
  TensorImpl& root = *state.root;
  if (!shares(x, root)) {  // the write has given it a buffer of its own
    state.root = nullptr;
    state.views = {};
    return;
  }
  const uint64_t version = source_of(root)->version();
  if (std::exchange(state.root_version, version) == version)
    return;  // nothing was written: only the shape of the view has changed
  if (state.node) link_reshaped(root, kWritten, {state.node, state.output}, x.meta());
  else set_history(root, nullptr, 0);
}

std::vector<Tensor> inputs(const std::vector<SavedTensor>& saved, const BackwardContext& context, size_t slot) {
  std::vector<Tensor> tensors;
  tensors.reserve(saved.size());
  for (const SavedTensor& each : saved) tensors.push_back(each.input(context, slot));
  return tensors;
}

}  // namespace shard::autograd

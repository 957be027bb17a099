#include "shard/autograd/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "shard/autograd/leaf.h"
#include "shard/call/view_link.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/ops/creation.h"

namespace shard::autograd {

OutputInfo info_of(const TensorImpl& tensor) {
  return {tensor.meta(), tensor.kind() == TensorKind::dist ? static_cast<const DistTensorImpl&>(tensor).spec : nullptr,
          tensor.value.device()};
}

namespace {

[[gnu::tls_model("initial-exec")]] constinit thread_local uint64_t last_number = 0;

/// A unique number for each thread.
uint32_t thread_number() {
  static std::atomic<uint32_t> threads{0};
  [[gnu::tls_model("initial-exec")]] static constinit thread_local uint32_t number = 0;
  if (number == 0) number = ++threads;
  return number;
}

/// A copy of the bytes in a storage of its own; absent storage stays absent.
DenseTensor own_copy(const TensorImpl& tensor) {
  const DenseTensor& value = tensor.value;
  DenseTensor copy =
      value.storage()->state() == Storage::State::absent ? DenseTensor(Storage::absent(), value.meta()) : clone(value);
  if (Tracer* const tracer = Tracer::current()) {
    const OutputInfo info = info_of(tensor);
    copy.set_symbol(tracer->convert(Tracer::Conversion::clone, value,
                                    {.meta = info.meta, .spec = info.spec, .device = info.device}, -1));
  }
  return copy;
}

/// Under ViewPolicy::sync a call that saves a stale view refreshes it before it is saved. Errors
/// are left to the call.
void refresh(const Tensor& x) {
  if (!x.is_dist()) return;
  const auto& impl = static_cast<const DistTensorImpl&>(x.get());
  if (impl.owner->policies.view != ViewPolicy::sync) return;
  for (const Storage* s = impl.value.storage().get(); s->stale(); s = s->detachment()->source.get()) {
    if (!s->detachment()->refresh) return;
  }
  Storage* const storage = impl.value.storage().get();
  call::refresh_views(*impl.owner, *impl.spec->mesh(), {&storage, 1});
}

}  // namespace

SavedTensor::SavedTensor(const Tensor& x) {
  if (!x.defined()) return;
  *this = read_of(x);
  OwnedEdge edge = edge_of(x);
  GradState& state = value_.impl()->grad;
  state.requires_grad = static_cast<bool>(edge);
  state.node = std::move(edge.node);
  state.output = edge.output;
}

SavedTensor SavedTensor::output_of(const Tensor& x) {
  SavedTensor saved;
  if (!x.defined()) return saved;
  saved.value_ = Tensor(x.impl()->alias());
  saved.views_ = x.impl()->grad.views;
  saved.version_ = x.version();
  return saved;
}

SavedTensor SavedTensor::read_of(const Tensor& x) {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt(x);
  refresh(x);
  return output_of(x);
}

SavedTensor SavedTensor::copy_of(const Tensor& x) {
  SavedTensor saved(x);
  saved.value_.impl()->value = own_copy(*x.impl());
  saved.version_ = 0;
  saved.views_ = {};
  return saved;
}

SavedTensor SavedTensor::shape_of(const Tensor& x) {
  SavedTensor saved;
  if (!x.defined()) return saved;
  saved.value_ = Tensor(x.impl()->alias());
  DenseTensor& value = saved.value_.impl()->value;
  const uint32_t symbol = value.symbol();
  value = DenseTensor(Storage::shape_only(value.device()), value.meta());
  value.set_symbol(symbol);
  saved.shape_only_ = true;
  return saved;
}

Tensor SavedTensor::input(const BackwardContext& context, size_t slot) const {
  return checked(context.node(), true, slot);
}

Tensor SavedTensor::output(const BackwardContext& context, size_t slot) const {
  return checked(context.node(), false, slot);
}

Tensor SavedTensor::checked(const Node& node, bool input, size_t slot) const {
  if (!value_.defined() || shape_only_) return value_;
  const Storage& storage = *value_.impl()->value.storage();
  if (is_written()) {
    const OpDef& op = node.op();
    fail_written(
        node,
        fmt::format("{} '{}'", input ? "argument" : "output", input ? op.inputs[slot].name : op.outputs[slot].name),
        storage.last_write());
  }
  if (!storage.stale()) return value_;
  // A view of a copy is a snapshot of its source: its own bytes have not changed.
  Tensor snapshot(value_.impl()->alias());
  TensorImpl& impl = *snapshot.impl();
  impl.value = own_copy(impl);
  impl.grad.requires_grad = value_.impl()->grad.requires_grad;
  impl.grad.node = value_.impl()->grad.node;
  impl.grad.output = value_.impl()->grad.output;
  return snapshot;
}

void SavedTensor::check_same(const BackwardContext& context, std::string_view what) const {
  const Storage* written = value_.impl()->value.storage().get();
  if (is_written()) fail_written(context.node(), what, written->last_write());
  if (!written->stale()) return;
  while (written->detachment() != nullptr && written->stale()) written = written->detachment()->source.get();
  fail_written(context.node(), what, written->last_write());
}

void SavedTensor::fail_written(const Node& node, std::string_view what, const LastWrite* write) const {
  const std::string_view op = node.op().name;
  const std::string views = views_.text();
  const uint64_t version = value_.version();
  const std::string versions =
      version == version_ ? "its source was" : fmt::format("it was at version {} and is at {}", version_, version);
  fail(ErrorCode::autograd,
       "[{}_grad] {} ({}){} was saved by [{}]{} for its gradient and has been written since, last by {}: {}. Write a "
       "copy (assign(x)) instead, use the out-of-place form of the op that writes, or write after backward",
       op, what, value_.get().describe(), views.empty() ? "" : ", which is a view by " + views + ",", op,
       node.site().text(), LastWrite::text(write), versions);
}

Node::Node(const OpDef& op, SmallVec<Edge, 4>&& edges, CallSite site)
    : op_(op), site_(site), thread_(thread_number()), edges_(std::move(edges)) {
  for (const Edge& edge : edges_) {
    if (edge) last_number = std::max(last_number, edge.node->sequence_);
  }
  sequence_ = ++last_number;
}

uint64_t Node::last_sequence() { return last_number; }

bool Node::of_this_thread() const { return thread_ == thread_number(); }

Node::~Node() {
  for (const Edge& edge : edges_) {
    if (edge) Ref<GradNode>::adopt(edge.node);
  }
}

void Node::dispose() {
  // A node frees its predecessors. They wait in a list, so that long chains need no recursion.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local Node* waiting = nullptr;
  [[gnu::tls_model("initial-exec")]] static constinit thread_local bool running = false;
  if (running) {
    next_disposed_ = std::exchange(waiting, this);
    return;
  }
  running = true;
  delete this;
  while (waiting != nullptr) {
    Node* const next = std::exchange(waiting, waiting->next_disposed_);
    delete next;
  }
  running = false;
}

void Node::release() {
  saved_outputs_.clear();
  released_ = true;
}

void Node::set_output(size_t i, const OutputInfo& info) {
  if (i == 0) {
    first_output_ = info;
    return;
  }
  if (more_outputs_.size() < i) {
    more_outputs_.resize(i);
    more_incoming_.resize(i);
  }
  more_outputs_[i - 1] = info;
}

void Node::add_hook(uint32_t output, std::shared_ptr<Hook> hook, Turn turn) {
  if (!hooks_) hooks_ = std::make_unique<std::vector<OutputHook>>();
  const auto behind = [turn](const OutputHook& each) { return each.turn > turn; };
  hooks_->insert(std::find_if(hooks_->begin(), hooks_->end(), behind), {output, turn, std::move(hook)});
}

void Node::remove_hook(const std::shared_ptr<Hook>& hook) {
  if (hooks_) std::erase_if(*hooks_, [&](const OutputHook& each) { return each.function == hook; });
}

Tensor BackwardContext::zeros(size_t flat) const {
  const OutputInfo& info = node_.output(flat);
  if (info.spec != nullptr)
    return shard::zeros(IntArray(info.meta.dims), gradient_layout(info.spec), info.meta.dtype, info.device);
  return shard::zeros(IntArray(info.meta.dims), info.meta.dtype, info.device);
}

Tensor BackwardContext::grad(size_t slot) const {
  const size_t flat = node_.first_output(slot);
  const Tensor& gradient = node_.incoming(flat);
  return gradient.defined() ? gradient : zeros(flat);
}

Tensor BackwardContext::grad_or_none(size_t slot) const { return node_.incoming(node_.first_output(slot)); }

std::vector<Tensor> BackwardContext::grads(size_t slot) const {
  std::vector<Tensor> all;
  const size_t first = node_.first_output(slot);
  for (size_t i = first; i < first + node_.outputs_of(slot); ++i) {
    const Tensor& gradient = node_.incoming(i);
    all.push_back(gradient.defined() ? gradient : zeros(i));
  }
  return all;
}

std::vector<Tensor> BackwardContext::grads_or_none(size_t slot) const {
  std::vector<Tensor> all;
  const size_t first = node_.first_output(slot);
  for (size_t i = first; i < first + node_.outputs_of(slot); ++i) all.push_back(node_.incoming(i));
  return all;
}

Tensor BackwardContext::output(size_t slot) const {
  if (slot >= node_.saved_outputs_.size()) return {};
  return with_history(node_.saved_outputs_[slot].output(*this, slot), node_.first_output(slot));
}

std::vector<Tensor> BackwardContext::outputs(const std::vector<SavedTensor>& saved, size_t slot) const {
  std::vector<Tensor> all;
  for (const SavedTensor& each : saved)
    all.push_back(with_history(each.output(*this, slot), node_.first_output(slot) + all.size()));
  return all;
}

/// Its history is this step, which must not own itself unless the gradient is differentiated.
Tensor BackwardContext::with_history(Tensor output, size_t flat) const {
  if (!output.defined() || !is_floating(output.dtype()) || !grad_enabled()) return output;
  Tensor recorded(output.impl()->alias());
  GradState& state = recorded.impl()->grad;
  node_.retain();
  state.node = Ref<GradNode>::adopt(&node_);
  state.output = static_cast<uint32_t>(flat);
  state.requires_grad = true;
  return recorded;
}

bool BackwardContext::needs_grad(size_t slot) const {
  const size_t first = node_.first_edge(slot);
  for (size_t i = first; i < first + node_.edges_of(slot); ++i) {
    if (needs_grad(node_.edges()[i])) return true;
  }
  return false;
}

void BackwardContext::set_grad(size_t slot, Tensor gradient) {
  const Edge edge = node_.edges()[node_.first_edge(slot)];
  if (needs_grad(edge) && gradient.defined()) grads_.emplace_back(edge, std::move(gradient));
}

void BackwardContext::set_grad(size_t slot, std::vector<Tensor> gradients) {
  const size_t first = node_.first_edge(slot);
  if (gradients.size() != node_.edges_of(slot)) {
    fail(ErrorCode::internal, "[{}_grad] returned {} gradients for the {} tensors of argument '{}'", node_.op().name,
         gradients.size(), node_.edges_of(slot), node_.op().inputs[slot].name);
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Edge edge = node_.edges()[first + i];
    if (needs_grad(edge) && gradients[i].defined()) grads_.emplace_back(edge, std::move(gradients[i]));
  }
}

}  // namespace shard::autograd

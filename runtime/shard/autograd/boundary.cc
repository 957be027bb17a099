#include "shard/autograd/boundary.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace shard::autograd {
namespace {

constexpr OpDef kGate = {.name = "gate", .inputs = slots<"x">, .outputs = slots<"out">};

}  // namespace

Boundary::Boundary(Reads reads) : before_(this_thread.boundary), start_(Node::last_sequence()), reads_(reads) {
  this_thread.boundary = this;
}

Boundary::~Boundary() { this_thread.boundary = before_; }

NoBoundary::NoBoundary() : before_(std::exchange(this_thread.boundary, nullptr)) {}

NoBoundary::~NoBoundary() { this_thread.boundary = before_; }

NoBoundary::Suspended::Suspended(const NoBoundary& no_boundary)
    : before_(std::exchange(this_thread.boundary, no_boundary.before_)) {}

NoBoundary::Suspended::~Suspended() { this_thread.boundary = before_; }

/// Leaves get their steps when they are first used, which may be within the scope. The numbers of
/// other threads' steps cannot be compared.
bool Boundary::is_inside(const Node& node) const {
  if (node.sequence() <= start_ || !node.of_this_thread() || node.leaf() != nullptr) return false;
  return std::none_of(histories_.begin(), histories_.end(),
                      [&](const Ref<GradNode>& each) { return each.get() == &node; });
}

void Boundary::add_history(const Ref<GradNode>& step, const Node& from) {
  for (Boundary* each = this; each != nullptr; each = each->before_) {
    if (!each->is_inside(from)) each->histories_.push_back(step);
  }
}

void Boundary::note(const Tensor& read) {
  if (before_ != nullptr) before_->note(read);
  if (reads_ == Reads::ignored || !read.defined()) return;
  const TensorImpl& impl = read.get();
  if (impl.grad.node && is_inside(static_cast<const Node&>(*impl.grad.node))) return;
  SavedTensor now = SavedTensor::read_of(read);
  if (known_.insert(now.value().get().value.storage().get()).second) read_.push_back(std::move(now));
}

void Boundary::leave_out(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) known_.insert(tensor.get().value.storage().get());
  }
}

std::vector<SavedTensor> Boundary::take_reads(const std::vector<Tensor>& results) {
  std::unordered_map<const Storage*, uint32_t> handles;
  for (const Tensor& result : results) ++handles[result.get().value.storage().get()];
  std::erase_if(read_, [&](const SavedTensor& each) {
    const auto result = handles.find(each.value().get().value.storage().get());
    return each.is_only_owner(result == handles.end() ? 0 : result->second) || each.is_written();
  });
  known_.clear();
  return std::move(read_);
}

OwnedEdge Boundary::cross(OwnedEdge edge) {
  if (is_inside(*edge.get())) return edge;
  if (before_ != nullptr) edge = before_->cross(std::move(edge));
  const auto same = [&](const OwnedEdge& other) { return other.node == edge.node && other.output == edge.output; };
  const auto place = std::find_if(outside_.begin(), outside_.end(), same);
  if (place != outside_.end()) return gates_[static_cast<size_t>(place - outside_.begin())];
  outside_.push_back(edge);
  const auto open = [](BackwardContext& context) { context.set_grads<0>(context.grad(0)); };
  const OutputInfo info = edge.get()->output(edge.output);
  auto* const gate = new FunctionNode<decltype(open)>(kGate, {edge.leak()}, open);
  gate->set_output(0, info);
  return gates_.emplace_back(OwnedEdge{Ref<GradNode>::adopt(gate), 0});
}

}  // namespace shard::autograd

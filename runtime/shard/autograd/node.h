// The recorded steps of a computation: what each needs to compute the gradients of its inputs, and
// where those gradients go.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "shard/core/export.h"
#include "shard/core/grad_mask.h"
#include "shard/core/op_def.h"
#include "shard/core/small_vec.h"
#include "shard/core/tensor.h"
#include "shard/dist/spec.h"

namespace shard::autograd {

class Node;
class BackwardContext;

/// The destination of the gradient of a tensor: an output of the step that made it. No node: the
/// gradient is not wanted.
struct Edge {
  Node* node = nullptr;
  uint32_t output = 0;

  explicit operator bool() const { return node != nullptr; }
  bool operator==(const Edge&) const = default;
};

/// Facts about an output of a step: its gradient has the same shape, dtype and mesh.
struct OutputInfo {
  Meta meta;
  const DistSpec* spec = nullptr;  // null for a plain tensor
  Device device;
};
SHARD_API OutputInfo info_of(const TensorImpl& tensor);

/// A function that is called with each gradient of a tensor. It returns a replacement, or an
/// undefined tensor to keep the gradient.
using Hook = std::function<Tensor(const Tensor& gradient)>;

/// A tensor that a step saves for its gradient: its value, and the version by which a later write
/// is detected.
class SHARD_API SavedTensor {
 public:
  SavedTensor() = default;
  /// Saves the present value of `x`, an input of the step.
  explicit SavedTensor(const Tensor& x);
  /// Saves `x`, an output of the step, with the value after the step.
  static SavedTensor output_of(const Tensor& x);
  /// Saves `x` as a call reads it now, without its history.
  static SavedTensor read_of(const Tensor& x);
  /// Saves a copy of the value of `x`, in its layout, with its history: for a step that overwrites
  /// it.
  static SavedTensor copy_of(const Tensor& x);
  /// Saves shape, dtype and layout of `x`, without its buffer.
  static SavedTensor shape_of(const Tensor& x);

  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  /// The tensor, as input or output `slot` of the running step. Throws autograd when its buffer was
  /// written since.
  Tensor input(const BackwardContext& context, size_t slot) const;
  Tensor output(const BackwardContext& context, size_t slot) const;
  /// Throws autograd when the buffer was written since, or the tensor is a copy whose source was
  /// written: for a tensor that the running step reads directly, not through this object. `what`
  /// names it in the message.
  void check_same(const BackwardContext& context, std::string_view what) const;
  /// Whether only this object and `others` handles refer to the buffer.
  bool is_only_owner(uint32_t others) const { return value_.get().value.storage()->use_count() <= 1 + others; }
  bool is_written() const { return value_.version() != version_; }

 private:
  Tensor checked(const Node& node, bool input, size_t slot) const;
  [[noreturn]] void fail_written(const Node& node, std::string_view what, const LastWrite* write) const;

  Tensor value_;
  uint64_t version_ = 0;
  bool shape_only_ = false;
  ViewChain views_;
};

/// A recorded step. It owns the steps that its inputs come from.
class SHARD_API Node : public GradNode {
 public:
  /// `op` lives as long as the library. Takes ownership of the references of `edges`.
  Node(const OpDef& op, SmallVec<Edge, 4>&& edges, CallSite site = {});

  /// Computes the gradients of the inputs from those of the outputs.
  virtual void run(BackwardContext& context) = 0;
  /// Frees the saved tensors.
  virtual void release();
  /// The leaf at which a computation ends with this step; null for other steps.
  virtual const Tensor* leaf() const { return nullptr; }

  const OpDef& op() const { return op_; }
  /// The call site in the program.
  CallSite site() const { return site_; }
  /// Each thread numbers its steps in the order in which it records them. All inputs of a step have
  /// lower numbers, even if another thread recorded them: this thread then continues from their
  /// numbers.
  uint64_t sequence() const { return sequence_; }
  /// The highest number of this thread.
  static uint64_t last_sequence();
  /// Whether the calling thread has recorded it.
  bool of_this_thread() const;
  const SmallVec<Edge, 4>& edges() const { return edges_; }
  /// The index in edges() of the first tensor of an input slot.
  size_t first_edge(size_t slot) const { return begins_.empty() ? slot : begins_[slot]; }
  size_t edges_of(size_t slot) const { return begins_.empty() ? 1 : begins_[slot + 1] - begins_[slot]; }
  bool released() const { return released_; }
  void set_output(size_t i, const OutputInfo& info);
  const OutputInfo& output(size_t i) const { return i == 0 ? first_output_ : more_outputs_[i - 1]; }
  size_t first_output(size_t slot) const { return output_begins_.empty() ? slot : output_begins_[slot]; }
  size_t outputs_of(size_t slot) const {
    return output_begins_.empty() ? 1 : output_begins_[slot + 1] - output_begins_[slot];
  }
  /// Hooks of an output run in the order in which they are added, those with `last` after all
  /// others. An empty function disables its hook.
  enum class Turn : uint8_t { in_order, last };
  void add_hook(uint32_t output, std::shared_ptr<Hook> hook, Turn turn = Turn::in_order);
  void remove_hook(const std::shared_ptr<Hook>& hook);

 protected:
  ~Node() override;
  void dispose() override;

 private:
  friend class Recording;
  friend class Engine;
  friend class BackwardContext;
  struct OutputHook {
    uint32_t output;
    Turn turn;
    std::shared_ptr<Hook> function;
  };
  Tensor& incoming(size_t i) { return i == 0 ? first_incoming_ : more_incoming_[i - 1]; }
  size_t output_count() const { return 1 + more_outputs_.size(); }

  const OpDef& op_;
  CallSite site_;
  uint64_t sequence_;
  uint32_t thread_;  // of the thread that recorded it
  SmallVec<Edge, 4> edges_;
  SmallVec<uint16_t, 8> begins_;         // of input slots in edges_, where some are lists
  SmallVec<uint16_t, 8> output_begins_;  // of output slots, in the same way
  OutputInfo first_output_;
  std::vector<OutputInfo> more_outputs_;
  std::vector<SavedTensor> saved_outputs_;
  bool released_ = false;
  Node* next_disposed_ = nullptr;  // in the list of nodes that wait to be deleted

  // The backward pass that is running.
  const void* pass_ = nullptr;
  Tensor first_incoming_;
  std::vector<Tensor> more_incoming_;
  std::unique_ptr<std::vector<OutputHook>> hooks_;
};

/// The interface of a running step to the backward pass.
class SHARD_API BackwardContext {
 public:
  /// With `needed`, gradients for other steps are not wanted.
  explicit BackwardContext(Node& node, const std::unordered_set<const Node*>* needed = nullptr)
      : node_(node), needed_(needed) {}

  const Node& node() const { return node_; }
  /// The gradient of output `slot`, a single tensor; zeros where nothing depends on it.
  Tensor grad(size_t slot) const;
  /// As grad(), but undefined where nothing depends on it.
  Tensor grad_or_none(size_t slot) const;
  /// The gradients of the tensors of output `slot`, a list.
  std::vector<Tensor> grads(size_t slot) const;
  std::vector<Tensor> grads_or_none(size_t slot) const;
  /// The value of output `slot`, if the step saved it; otherwise undefined.
  Tensor output(size_t slot) const;
  /// The values of output `slot`, a list, which the gradient function has saved itself.
  std::vector<Tensor> outputs(const std::vector<SavedTensor>& saved, size_t slot) const;

  /// A mask of which of these input slots want a gradient, in this order.
  template <size_t... slots>
  GradMask needs_grads() const {
    GradMask mask = GradMask::none();
    size_t i = 0;
    ((needs_grad(slots) ? mask.add(i) : void(), ++i), ...);
    return mask;
  }
  bool needs_grad(size_t slot) const;

  /// Sets the gradients of these input slots: a tensor, a list of them, or a tuple of both.
  template <size_t... slots, class Result>
  void set_grads(Result&& result) {
    if constexpr (sizeof...(slots) == 1) {
      (set_grad(slots, std::forward<Result>(result)), ...);
    } else {
      std::apply([&](auto&&... each) { (set_grad(slots, std::move(each)), ...); }, std::forward<Result>(result));
    }
  }
  void set_grad(size_t slot, Tensor gradient);
  void set_grad(size_t slot, std::vector<Tensor> gradients);

 private:
  friend class Engine;

  Tensor zeros(size_t flat) const;
  Tensor with_history(Tensor output, size_t flat) const;

  bool needs_grad(const Edge& edge) const { return edge && (needed_ == nullptr || needed_->contains(edge.node)); }

  Node& node_;
  const std::unordered_set<const Node*>* needed_;
  std::vector<std::pair<Edge, Tensor>> grads_;
};

/// A step whose gradient is a function object, which holds the saved tensors.
template <class F>
class FunctionNode final : public Node {
 public:
  FunctionNode(const OpDef& op, SmallVec<Edge, 4>&& edges, F function, CallSite site = {})
      : Node(op, std::move(edges), site), function_(std::move(function)) {}
  void run(BackwardContext& context) override { (*function_)(context); }
  void release() override {
    function_.reset();
    Node::release();
  }

 private:
  std::optional<F> function_;
};

/// An edge that owns its step, unless something else does.
struct OwnedEdge {
  Ref<GradNode> node;
  uint32_t output = 0;

  explicit operator bool() const { return static_cast<bool>(node); }
  Node* get() const { return static_cast<Node*>(node.get()); }
  /// Transfers the reference to a Node's list of edges.
  Edge leak() { return {static_cast<Node*>(node.leak()), output}; }
};
/// The edge of a tensor. Brings the history of a view up to date, and creates the step that
/// accumulates the gradients of a leaf.
SHARD_API OwnedEdge edge_of(const Tensor& tensor);

}  // namespace shard::autograd

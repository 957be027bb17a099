// Records a call: generated code makes a Recording, runs the op, and links its results to a new
// step.
#pragma once

#include <exception>
#include <optional>
#include <string_view>
#include <utility>

#include "shard/autograd/boundary.h"
#include "shard/autograd/grad_mode.h"
#include "shard/call/dist_call.h"
#include "shard/call/resharded_inputs.h"
#include "shard/core/tracer.h"

namespace shard::autograd {

/// Whether a tensor that shares its buffer with others has got a history through one of them.
SHARD_API bool view_requires_grad(const TensorImpl& view);

inline bool requires_grad(const Tensor& x) {
  const TensorImpl* const impl = x.impl().get();
  return impl != nullptr && (impl->grad.requires_grad || (impl->grad.root && view_requires_grad(*impl)));
}
inline bool requires_grad(const std::vector<Tensor>& list) {
  for (const Tensor& x : list) {
    if (requires_grad(x)) return true;
  }
  return false;
}

/// True when a call with these tensors is to be recorded.
template <class... Tensors>
bool records(const Tensors&... tensors) {
  note_reads(tensors...);
  return (requires_grad(tensors) || ...) && grad_enabled();
}

/// Marks `out`, which `op` returned, as a view of `x` if they share a buffer.
SHARD_API void mark_view(const char* op, const Tensor& x, const Tensor& out);

/// Collects the tensors of a call before it runs.
class SHARD_API Recording {
 public:
  /// `inputs`: the tensor arguments, including lists, in the order of the op's slots. Throws
  /// autograd where a written argument must not be written: a leaf that requires a gradient, or a
  /// view of one.
  template <class... Inputs>
  Recording(CallSite site, const OpDef& op, const Inputs&... inputs) : Recording(site, op, false) {
    (add(inputs), ...);
    check_targets();
  }
  template <class... Inputs>
  Recording(CallSite site, call::InplaceForm, const OpDef& op, const Inputs&... inputs) : Recording(site, op, true) {
    (add(inputs), ...);
    check_targets();
  }
  /// For a step whose only argument is a list, given by the edges of its tensors.
  Recording(CallSite site, const OpDef& op, std::vector<OwnedEdge> inputs);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();

  /// True where the gradient of input `slot` is wanted.
  bool needs_grad(size_t slot) const;
  /// Saves what the step needs of an input: its value, or its shape. In an in-place call, a copy of
  /// a tensor that will be overwritten.
  SavedTensor save(const Tensor& x) const;
  SavedTensor save_if(bool condition, const Tensor& x) const { return condition ? save(x) : SavedTensor(); }
  SavedTensor save_shape(const Tensor& x) const { return SavedTensor::shape_of(x); }
  SavedTensor save_or_shape(bool condition, const Tensor& x) const { return condition ? save(x) : save_shape(x); }
  std::vector<SavedTensor> save(const std::vector<Tensor>& list) const;
  std::vector<SavedTensor> save_shape(const std::vector<Tensor>& list) const;
  /// Marks output `slot`, a single tensor, to be saved by the step; or only its shape.
  void keep(size_t slot) { kept_ |= 1u << slot; }
  void keep_shape(size_t slot) { kept_shapes_ |= 1u << slot; }
  void keep_if(bool condition, size_t slot) {
    if (condition) keep(slot);
  }
  void keep_or_shape(bool condition, size_t slot) { condition ? keep(slot) : keep_shape(slot); }

  /// Makes the step, whose gradient is `function`, and returns `result` with the outputs
  /// `differentiable` linked to it.
  template <size_t... differentiable, class F, class Result>
  Result link(F&& function, Result result) {
    Outputs outputs;
    gather(outputs, result);
    constexpr unsigned bits = ((1u << differentiable) | ... | 0u);
    finish(new FunctionNode<std::decay_t<F>>(op_, std::move(edges_), std::forward<F>(function), site_), outputs, bits);
    return result;
  }
  /// The same, with all outputs.
  template <class F, class Result>
  Result link_all(F&& function, Result result) {
    Outputs outputs;
    gather(outputs, result);
    finish(new FunctionNode<std::decay_t<F>>(op_, std::move(edges_), std::forward<F>(function), site_), outputs, ~0u);
    return result;
  }
  /// Makes no step; only marks views among the results.
  template <class Result>
  void mark_views(const Result& result) const {
    Outputs outputs;
    gather(outputs, result);
    mark_views(outputs);
  }
  /// The same for an in-place call: `targets` are the outputs of the op in their order; hidden ones
  /// are null.
  template <size_t... differentiable, class F>
  void link_inplace(F&& function, std::initializer_list<const Tensor*> targets) {
    Outputs outputs;
    for (const Tensor* target : targets) outputs.slots.push_back(target);
    constexpr unsigned bits = ((1u << differentiable) | ... | 0u);
    finish(new FunctionNode<std::decay_t<F>>(op_, std::move(edges_), std::forward<F>(function), site_), outputs, bits);
  }

 private:
  /// The other constructors delegate to this one, so that an exception after it destroys an object
  /// that frees what it has collected.
  Recording(CallSite site, const OpDef& op, bool inplace) : op_(op), site_(site), inplace_(inplace) {}

  struct Outputs {
    SmallVec<const Tensor*, 8> slots;  // flat
    SmallVec<uint16_t, 8> begins;      // of slots, if some are lists
    size_t first(size_t slot) const { return begins.empty() ? slot : begins[slot]; }
  };
  static void gather(Outputs& outputs, const Tensor& result) { outputs.slots.push_back(&result); }
  static void gather(Outputs& outputs, const std::vector<Tensor>& result) {
    gather_slot(outputs, result, true);
    outputs.begins.push_back(static_cast<uint16_t>(outputs.slots.size()));
  }
  template <class... T>
  static void gather(Outputs& outputs, const std::tuple<T...>& result) {
    constexpr bool lists = (std::is_same_v<T, std::vector<Tensor>> || ...);
    std::apply([&](const auto&... each) { (gather_slot(outputs, each, lists), ...); }, result);
    if (lists) outputs.begins.push_back(static_cast<uint16_t>(outputs.slots.size()));
  }
  static void gather_slot(Outputs& outputs, const Tensor& result, bool lists) {
    if (lists) outputs.begins.push_back(static_cast<uint16_t>(outputs.slots.size()));
    outputs.slots.push_back(&result);
  }
  static void gather_slot(Outputs& outputs, const std::vector<Tensor>& result, bool) {
    outputs.begins.push_back(static_cast<uint16_t>(outputs.slots.size()));
    for (const Tensor& each : result) outputs.slots.push_back(&each);
  }

  void add(const Tensor& x);
  void add(const std::vector<Tensor>& list);
  void add_flat(const Tensor& x);
  void check_targets() const;
  void check_target(const Tensor& x, std::string_view name, bool written_view) const;
  bool writes(const AliasDef& alias) const;
  bool shares_target(const Tensor& x) const;
  std::span<const Tensor* const> slot(size_t i) const;
  friend class UnlinkedWrite;
  void mark_views(const Outputs& outputs) const;
  void link_targets(Node* made);
  void finish(Node* made, const Outputs& outputs, unsigned differentiable);
  void rebase(const Tensor& target, const Ref<GradNode>& node, uint32_t output) const;

  /// SavePolicy::resharded: saved tensors that are replaced by the resharded copies of the call.
  struct ReshardedSaves {
    call::ReshardedInputs inputs;
    std::vector<std::pair<const TensorImpl*, Ref<TensorImpl>>> saved;
  };
  void save_resharded_inputs() const;

  const OpDef& op_;
  CallSite site_;
  mutable std::unique_ptr<ReshardedSaves> resharded_saves_;
  bool inplace_ = false;
  unsigned kept_ = 0, kept_shapes_ = 0;
  SmallVec<Edge, 4> edges_;
  SmallVec<uint16_t, 8> begins_;
  SmallVec<const Tensor*, 8> inputs_;  // flat
};

/// Throws autograd where `x`, the argument `name` of `op`, must not be written where calls are
/// recorded: it is a leaf that requires a gradient, a view of one, or a view that was made where
/// nothing is recorded.
SHARD_API void check_written(std::string_view op, std::string_view name, const Tensor& x);
/// `x` has been written, and has its history: its base gets that history, too.
SHARD_API void rebase_root(const Tensor& x);
/// True for a view in the buffer of its base, or a copy that is kept in sync with the base.
SHARD_API bool shares_root(const TensorImpl& view);

/// Marks the results of an op that was not recorded: those that are views, as by mark_view.
template <class Result, class... Inputs>
Result views(const OpDef& op, Result result, const Inputs&... inputs) {
  if constexpr (std::is_same_v<Result, Tensor> && (std::is_same_v<Inputs, Tensor> && ...)) {
    // Nothing has to be collected where no capture follows the arguments and none of them is written.
    bool marks_only = Tracer::current() == nullptr;
    for (const AliasDef& alias : op.aliases) marks_only = marks_only && alias.kind != AliasDef::Kind::written_view;
    if (marks_only) [[likely]] {
      const Tensor* const arguments[] = {&inputs...};
      for (const AliasDef& alias : op.aliases) {
        if (alias.kind == AliasDef::Kind::view)
          mark_view(op.name.data(), *arguments[static_cast<size_t>(alias.input)], result);
      }
      return result;
    }
  }
  Recording(CallSite(), op, inputs...).mark_views(result);
  return result;
}

/// The gradient of an op that has none: it throws autograd.
struct SHARD_API NoGradient {
  void operator()(BackwardContext& context) const;
};

/// The results of an op that has no gradient: if one is wanted through them, backward ends with an
/// error that names the op.
template <class Result, class... Inputs>
Result unlinked(const OpDef& op, Result result, const Inputs&... inputs) {
  if (records(inputs...)) return Recording(CallSite(), op, inputs...).link_all(NoGradient(), std::move(result));
  if (!op.aliases.empty()) Recording(CallSite(), op, inputs...).mark_views(result);
  return result;
}

/// The same around an in-place form, which returns its targets. Throws like Recording, before
/// anything is written.
class SHARD_API UnlinkedWrite {
 public:
  template <class... Inputs>
  explicit UnlinkedWrite(const OpDef& op, const Inputs&... inputs) {
    if (records(inputs...)) recording_.emplace(CallSite(), call::inplace, op, inputs...);
  }
  UnlinkedWrite(const UnlinkedWrite&) = delete;
  UnlinkedWrite& operator=(const UnlinkedWrite&) = delete;
  ~UnlinkedWrite();

 private:
  std::optional<Recording> recording_;
  int exceptions_ = std::uncaught_exceptions();
};

/// The saved tensors of a list, as arguments of a gradient function.
SHARD_API std::vector<Tensor> inputs(const std::vector<SavedTensor>& saved, const BackwardContext& context,
                                     size_t slot);

}  // namespace shard::autograd

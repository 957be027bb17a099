// The tracer of a capture: turns what a function does with tensors into a program.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "shard/autograd/boundary.h"
#include "shard/call/dense_call.h"
#include "shard/core/algorithm_policy.h"
#include "shard/core/tracer.h"
#include "shard/program/capture/adopted.h"
#include "shard/program/capture/meters.h"
#include "shard/program/capture/trace.h"

namespace shard::program {

using TensorSet = std::unordered_set<const TensorImpl*>;

class ProgramTracer final : Metered, public Tracer {
 public:
  /// `shared` are the example inputs that the function also uses from outside.
  ProgramTracer(const Scope* scope, const TensorSet& shared, const autograd::NoBoundary& no_boundary)
      : Tracer(counted_), scope_(scope), shared_(shared), no_boundary_(no_boundary), before_(this_thread),
        recorded_(grad_enabled()), plain_(call::thread_generator()), plain_state_(plain_.state()) {
    if (before_.rank != nullptr) {
      world_state_ = before_.rank->generator.state();
      calls_done_ = before_.rank->comm_queue().calls_done();
    }
    this_thread.tracer = this;
    this_thread.launcher = &launcher_;
  }
  ProgramTracer(const ProgramTracer&) = delete;
  ProgramTracer& operator=(const ProgramTracer&) = delete;
  ~ProgramTracer() override { end(); }

  std::vector<Tensor> make_inputs(const std::vector<Tensor>& examples);
  void made(const Storage& storage) override { made_.insert(&storage); }

  void adopt(TensorImpl& tensor) override;
  void adopt_gradient(const Tensor& leaf) override;
  bool was_computed(const TensorImpl& tensor) const override;
  /// The example inputs that the function also used from outside, if that matters: then two tensors
  /// represent one leaf, which has one gradient.
  TensorSet found_shared() const;
  std::vector<uint32_t> call(const TracedCall& call) override;
  DenseTensor reshard(const ReshardPlan& plan, const DenseTensor& shard, std::string_view op_name,
                      std::string_view argument) override;
  void copy(DenseTensor& to, const DenseTensor& from) override;
  uint32_t convert(Conversion conversion, const DenseTensor& from, const TracedOutput& to, int source_rank) override;
  void refuse(std::string_view op, std::string_view what) override {
    fail(ErrorCode::capture, "[{}] cannot be captured: {}", op, what);
  }

  /// Restores everything outside the capture.
  void end();
  Trace finish(std::vector<Tensor> outputs);
  /// Call this after finish(). Throws if the function has stored a constant that it changed.
  void check_constants();

 private:
  struct Gradient {
    Tensor leaf;
    Tensor before;  // undefined if it had none
    ValueId value;
  };
  struct Buffer {
    Ref<Storage> real, symbolic;
    ValueId first = 0;
    size_t tensors = 0;      // tensors from outside on this buffer
    bool resharded = false;  // a view that was resharded
  };

  /// An input of the program, which represents an example input.
  struct Input {
    Tensor tensor;
    DenseTensor symbolic;
    Type type;
    size_t number;
    bool was_leaf;
    bool resharded_view;
    bool is_view;  // in the buffer of the tensor that it is a view of
    bool required_grad;
    const Storage* real;
  };

  /// A symbol has the number of the value in its low bits and the tag of the capture above them. So
  /// a tensor that outlives its capture is detected.
  static constexpr uint32_t kValueBits = (uint32_t{1} << 20) - 1;
  static uint32_t next_tag();
  uint32_t symbol_of(ValueId id) const;
  static ValueId value_in(const Tensor& tensor) { return tensor.impl()->value.symbol() & kValueBits; }

  Tensor make_input(const Tensor& example, size_t number);
  /// Adopts a tensor that the function created with its elements.
  void adopt_made(TensorImpl& tensor);
  bool is_free(const std::string& name) const;
  /// A name that neither the program nor the scope uses.
  std::string numbered_name(std::string_view stem) const;
  std::string free_name(std::string name) const;
  bool is_ours(const DenseTensor& value) const;
  void check_outside(const TensorImpl& tensor);
  /// Updates the history of a view whose buffer was written. The calls that this makes are not part
  /// of the capture.
  void update_history(const Tensor& tensor) const;
  ViewPolicy view_policy() const { return before_.rank == nullptr ? ViewPolicy::strict : before_.rank->policies.view; }

  /// A view that was resharded can be read, but not written, as long as its source is not written.
  /// Calls of the function detect that from the buffers that represent the two, like eager calls
  /// do.
  ///
  /// Another buffer represents the source if the function does not use the source, or if the source
  /// had made the view stale before the function was called. A view that each run refreshes
  /// (ViewPolicy::sync) is not stale.
  void link_resharded_view(const Buffer& view) const;
  /// The name of the op that made a view stale.
  static const char* writer_of(const Storage& view);
  void link_resharded_views(const Buffer& entered) const;
  /// A tensor of the program that replaces one from outside, on the buffer that represents the
  /// buffer of that one.
  std::pair<DenseTensor, ValueId> enter(const TensorImpl& tensor);
  ValueId value_of(const DenseTensor& tensor, std::string_view op);
  bool is_on_mesh(const Op& op) const;
  std::vector<uint32_t> add(Op op, std::span<const std::optional<Type>> types, std::span<const ValueId> sources,
                            std::vector<bool> writes);
  ValueId add_single(Op op, const Type& type);
  std::string name_of(const Tensor& tensor) const;
  /// The value of the program for a tensor from outside before any op writes it; 0 for a tensor
  /// that the function created.
  ValueId entry_of(const Tensor& tensor) const;
  /// The value that the caller gets for a tensor. A second handle to a tensor from outside, as
  /// detach() returns it, must not become that tensor, so it gets a value of its own.
  ValueId value_for_caller(const Tensor& tensor);
  const Adopted* adopted_of(const TensorImpl& tensor) const;
  const Input* input_of(const TensorImpl& tensor) const;
  bool is_resharded_entry(const Storage& symbolic) const;
  /// The outputs that are stale copies as the caller sees them. Sources that nobody can see any
  /// more do not matter.
  std::vector<DetachedOutput> detached_outputs(const std::vector<Tensor>& outputs);
  /// Adds arguments to which the function has given a history to the outputs, so that each run
  /// gives them one. Returns how many it added to the outputs that the function returns.
  size_t add_written(std::vector<Tensor>& outputs);
  /// True if all tensors from outside on this buffer are inputs, views together with their base, so
  /// that a write can give each of them its history.
  bool has_all_tensors_on(const Storage& real) const;
  /// The arguments as they were before the function wrote them.
  static std::vector<Tensor> as_entered(std::vector<Tensor> arguments);
  /// The outputs that are views, and the tensors they are views of, as far as the caller sees
  /// these.
  std::vector<ViewOutput> view_outputs(const std::vector<Tensor>& outputs) const;
  /// Captures the backward pass of the outputs of the function.
  std::optional<TracedGradient> differentiate(const std::vector<Tensor>& outputs);
  /// Computes the gradients of all outputs in one group.
  void add_wanted_leaves(TracedGradient& gradient, const std::vector<Tensor>& leaves) const;
  void add_gradients(TracedGradient& gradient, const std::vector<Tensor>& from, const std::vector<Tensor>& leaves);
  /// A new input or parameter of the program.
  Tensor new_tensor(const Type& type);
  /// Records what the function leaves in the gradients of leaves.
  void finish_gradients();
  void check_adopted() const;
  static void check_kept(const TensorImpl& tensor, const Type& type, bool same_place, bool required_grad);
  void finish_draws();

  DryLauncher launcher_{meter};
  const Scope* scope_;
  const TensorSet& shared_;
  const autograd::NoBoundary& no_boundary_;
  const ThreadState before_;
  const bool recorded_;
  const AlgorithmPolicy algorithms_ = algorithm_policy();
  Generator& plain_;
  const RandomKey plain_state_;
  RandomKey world_state_;
  uint64_t calls_done_ = 0;  // restored at the end: other ranks do not count calls made in a capture
  bool ended_ = false;
  const uint32_t tag_ = next_tag();
  Program program_;
  std::unordered_map<const Storage*, Buffer> buffers_;     // from outside
  std::unordered_set<const Storage*> made_;                // created by the function, with bytes
  std::unordered_map<const TensorImpl*, size_t> numbers_;  // numbers of the example inputs
  std::vector<Adopted> adopted_;
  std::vector<Constant> constants_;
  std::vector<Parameter> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<Input> inputs_;
  std::vector<bool> require_grad_;
  std::vector<Leaf> leaves_;
};

}  // namespace shard::program

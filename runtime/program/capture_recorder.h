// The recorder of a capture: what a function does with tensors becomes a program.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "autograd/boundary.h"
#include "call/dense_call.h"
#include "core/recorder.h"
#include "program/adopted.h"
#include "program/meters.h"
#include "program/trace.h"

namespace shard::program {

using TensorSet = std::unordered_set<const TensorImpl*>;

class CaptureRecorder final : Metered, public Recorder {
 public:
  /// `shared`: example inputs that the function uses from outside too.
  CaptureRecorder(const Scope* scope, const TensorSet& shared, const autograd::NoBoundary& apart)
      : Recorder(counted_), scope_(scope), shared_(shared), apart_(apart), before_(this_thread),
        recorded_(grad_enabled()), plain_(call::thread_generator()), plain_state_(plain_.state()) {
    if (before_.rank != nullptr) {
      world_state_ = before_.rank->generator.state();
      calls_done_ = before_.rank->comm_queue().calls_done();
    }
    this_thread.recorder = this;
    this_thread.dry = &meter;
  }
  CaptureRecorder(const CaptureRecorder&) = delete;
  CaptureRecorder& operator=(const CaptureRecorder&) = delete;
  ~CaptureRecorder() override { end(); }

  std::vector<Tensor> make_inputs(const std::vector<Tensor>& examples);
  void made(const Storage& storage) override { made_.insert(&storage); }

  void adopt(TensorImpl& tensor) override;
  void adopt_gradient(const Tensor& leaf) override;
  bool was_computed(const TensorImpl& tensor) const override;
  /// The example inputs that the function has used from outside too, where that matters: two tensors stand for one leaf, which has one gradient.
  TensorSet found_shared() const;
  std::vector<uint32_t> call(const RecordedCall& call) override;
  DenseTensor reshard(const ReshardPlan& plan, const DenseTensor& piece, std::string_view op_name,
                      std::string_view argument) override;
  void copy(DenseTensor& to, const DenseTensor& from) override;
  uint32_t convert(Conversion conversion, const DenseTensor& from, const RecordedOutput& to, int source_rank) override;
  void refuse(std::string_view op, std::string_view what) override {
    fail(ErrorCode::capture, "[{}] cannot be captured: {}", op, what);
  }

  /// Puts everything outside back as it was.
  void end();
  Trace finish(std::vector<Tensor> outputs);
  /// After finish(): throws where the function has put away what it changes.
  void check_constants();

 private:
  struct Gradient {
    Tensor leaf;
    Tensor before;  // undefined: it had none
    ValueId value;
  };
  struct Buffer {
    Ref<Storage> real, symbolic;
    ValueId first = 0;
    size_t tensors = 0;  // from outside, that are in it
    bool moved = false;  // a view that had to move
  };

  /// What stands for an example.
  struct Input {
    Tensor tensor;
    DenseTensor symbolic;
    Type type;
    size_t number;
    bool was_leaf;
    bool moved_view;
    bool is_view;  // in the buffer of what it is a view of
    bool required_grad;
    const Storage* real;
  };

  /// Tensors carry the number of their value, with that of the capture above it: one that outlives its capture is found out.
  static constexpr uint32_t kValueBits = (uint32_t{1} << 20) - 1;
  static uint32_t next_tag();
  uint32_t symbol_of(ValueId id) const;
  static ValueId value_in(const Tensor& tensor) { return tensor.impl()->value.symbol() & kValueBits; }

  Tensor make_input(const Tensor& example, size_t number);
  /// One that the function has made with its elements.
  void adopt_made(TensorImpl& tensor);
  bool is_free(const std::string& name) const;
  /// A name that neither the program nor the scope has.
  std::string numbered_name(std::string_view stem) const;
  std::string free_name(std::string name) const;
  bool is_ours(const DenseTensor& value) const;
  void check_outside(const TensorImpl& tensor);
  /// Of a view whose buffer was written. What that records is outside of the capture.
  void update_history(const Tensor& tensor) const;
  ViewPolicy view_policy() const { return before_.rank == nullptr ? ViewPolicy::strict : before_.rank->policies.view; }

  /// A view that had to move reads what it holds, and is not written, as long as its source is not written: calls of the function find out from the
  /// buffers that stand for the two, as eager calls do. Of sources that the function does not use, and of one that makes the view stale before it
  /// is called, another buffer stands there; a view that each run brings up to date (ViewPolicy::sync) is not stale.
  void tie_moved_view(const Buffer& view) const;
  /// Who has made a view stale.
  static const char* writer_of(const Storage& view);
  void tie_moved_views(const Buffer& entered) const;
  /// A tensor of the program in place of one from outside, on the buffer that stands for that one's.
  std::pair<DenseTensor, ValueId> enter(const TensorImpl& tensor);
  ValueId value_of(const DenseTensor& tensor, std::string_view op);
  bool is_on_mesh(const Op& op) const;
  std::vector<uint32_t> add(Op op, std::span<const std::optional<Type>> types, std::span<const ValueId> sources,
                            std::vector<bool> writes);
  ValueId add_single(Op op, const Type& type);
  std::string name_of(const Tensor& tensor) const;
  /// The value of the program that a tensor from outside is before any op writes it; 0 for one that the function has made.
  ValueId entry_of(const Tensor& tensor) const;
  /// What the caller gets for a tensor. Another handle to one from outside, as detach() gives, must not become that one.
  ValueId value_for_caller(const Tensor& tensor);
  const Adopted* adopted_of(const TensorImpl& tensor) const;
  const Input* input_of(const TensorImpl& tensor) const;
  bool is_moved_entry(const Storage& symbolic) const;
  /// What the caller will see of views that have parted from their sources: sources that nobody sees any more do not matter.
  std::vector<DetachedOutput> detached_outputs(const std::vector<Tensor>& outputs);
  /// Arguments that the function has given a history become outputs, so that each run gives them one. Returns how many are so beside those that it returns.
  size_t add_written(std::vector<Tensor>& outputs);
  /// Whether all tensors from outside on this buffer are inputs, so that a write can give each of them its history: views with their base.
  bool has_all_tensors_on(const Storage& real) const;
  /// Arguments as they were before the function wrote them.
  static std::vector<Tensor> as_entered(std::vector<Tensor> arguments);
  /// Which outputs are views, and of what the caller sees.
  std::vector<ViewOutput> view_outputs(const std::vector<Tensor>& outputs) const;
  /// The backward pass of what the function has returned.
  std::optional<TracedGradient> differentiate(const std::vector<Tensor>& outputs);
  /// All outputs in one group.
  void want_all(TracedGradient& gradient, const std::vector<Tensor>& leaves) const;
  void add_gradients(TracedGradient& gradient, const std::vector<Tensor>& from, const std::vector<Tensor>& leaves);
  /// A tensor that the program is given.
  Tensor new_tensor(const Type& type);
  /// What the function leaves in the gradients of leaves.
  void finish_gradients();
  void check_adopted() const;
  static void check_kept(const TensorImpl& tensor, const Type& type, bool same_place, bool required_grad);
  void finish_draws();

  const Scope* scope_;
  const TensorSet& shared_;
  const autograd::NoBoundary& apart_;
  const ThreadState before_;
  const bool recorded_;
  Generator& plain_;
  const RandomKey plain_state_;
  RandomKey world_state_;
  uint64_t calls_done_ = 0;  // a capture makes no call that other ranks would know of
  bool ended_ = false;
  const uint32_t tag_ = next_tag();
  Program program_;
  std::unordered_map<const Storage*, Buffer> buffers_;     // from outside
  std::unordered_set<const Storage*> made_;                // by the function, with bytes
  std::unordered_map<const TensorImpl*, size_t> numbers_;  // of the example inputs
  std::vector<Adopted> adopted_;
  std::vector<Constant> constants_;
  std::vector<Parameter> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<Input> inputs_;
  std::vector<bool> require_grad_;
  std::vector<Leaf> leaves_;
};

}  // namespace shard::program

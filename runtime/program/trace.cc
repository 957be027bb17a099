#include "program/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "autograd/autograd.h"
#include "autograd/leaf.h"
#include "call/dense_call.h"
#include "core/recorder.h"
#include "core/writing.h"
#include "dist/dist_tensor.h"
#include "program/alias.h"
#include "program/groups.h"
#include "program/rewrite.h"
#include "reshard/plan.h"

namespace shard::program {
namespace {

/// This rank's piece of a value of the program: without bytes.
DenseTensor piece_of(const Type& type, MemoryMeter& meter) {
  if (type.spec == nullptr) return DenseTensor::allocate(type.device, type.meta, &meter);
  const auto at = type.spec->mesh()->coordinate(current_rank().id());
  if (!at) return absent_value(type.meta);
  return DenseTensor::allocate(type.device, {local_piece(type.spec->layout(), type.meta.dims, *at).dims, type.meta.dtype}, &meter);
}

/// A tensor from outside while it is one of the program, and what it is when the capture ends.
class Adopted {
 public:
  Adopted(TensorImpl& impl, DenseTensor symbolic, ValueId value)
      : impl_(&impl), real_(impl.value), symbolic_(symbolic), type_(type_of(impl)), value_(value) {
    impl.retain();
    handle_ = Tensor(Ref<TensorImpl>::adopt(&impl));
    GradState& state = impl.grad;
    history_ = {state.requires_grad, state.output, std::move(state.node), std::move(state.root), state.root_version, state.views};
    // Whatever it was computed from, in the program it is where computations start.
    state.output = 0;
    state.root_version = 0;
    state.views = {};
    impl.value = std::move(symbolic);
  }

  void restore() {
    GradState& state = impl_->grad;
    state.requires_grad = history_.requires_grad;
    state.output = history_.output;
    state.node = std::move(history_.node);
    state.root = std::move(history_.root);
    state.root_version = history_.root_version;
    state.views = history_.views;
    impl_->value = std::move(real_);
    if (type_.spec == nullptr) return;
    auto& dist = static_cast<DistTensorImpl&>(*impl_);
    dist.global = type_.meta;
    dist.spec = type_.spec;
  }

  const Tensor& handle() const { return handle_; }
  const Type& type() const { return type_; }
  ValueId value() const { return value_; }
  bool was_leaf() const { return !history_.node; }
  /// Whether it still is the tensor that it was, but for its elements.
  bool same_place() const { return impl_->value.storage() == symbolic_.storage() && type_of(*impl_) == type_; }
  bool same_history() const { return !impl_->grad.node && impl_->grad.requires_grad == history_.requires_grad; }

 private:
  struct History {
    bool requires_grad;
    uint32_t output;
    Ref<GradNode> node;
    Ref<TensorImpl> root;
    uint64_t root_version;
    ViewChain views;
  };
  TensorImpl* impl_;
  Tensor handle_;
  DenseTensor real_, symbolic_;
  Type type_;
  ValueId value_;
  History history_;
};

class CaptureRecorder final : public Recorder {
 public:
  explicit CaptureRecorder(const Scope* scope)
      : scope_(scope), before_(this_thread), recorded_(grad_enabled()), plain_(call::thread_generator()), plain_state_(plain_.state()) {
    if (before_.rank != nullptr) world_state_ = before_.rank->generator.state();
    this_thread.recorder = this;
    this_thread.dry = &meter;
  }
  CaptureRecorder(const CaptureRecorder&) = delete;
  CaptureRecorder& operator=(const CaptureRecorder&) = delete;
  ~CaptureRecorder() override { end(); }

  std::vector<Tensor> make_inputs(const std::vector<Tensor>& examples) {
    std::vector<Tensor> inputs;
    for (const Tensor& example : examples) {
      const std::string name = fmt::format("input_{}", inputs.size());
      require_grad_.push_back(recorded_ && example.defined() && example.requires_grad());
      if (!example.defined()) {
        inputs.emplace_back();
        program_.inputs.push_back({name, 0});
        continue;
      }
      TensorImpl& impl = example.get();
      check_outside(impl);
      auto [value, id] = enter(impl);
      Tensor& input = inputs.emplace_back(impl.alias());
      input.impl()->value = std::move(value);
      input.impl()->grad.requires_grad = example.requires_grad();
      program_.inputs.push_back({name, id});
      inputs_.push_back({input, input.impl()->value, type_of(impl), inputs.size() - 1, example.is_leaf()});
      if (const autograd::LeafExtra* const extra = autograd::extra_or_null(example)) {
        autograd::LeafExtra& own = autograd::extra_of(input);
        own.layout = extra->layout;
        own.hooks = extra->hooks;
      }
    }
    return inputs;
  }

  void adopt(TensorImpl& tensor) override {
    const DenseTensor& value = tensor.value;
    if (is_ours(value) || value.storage()->state() == Storage::State::shape_only) return;
    check_outside(tensor);
    tensor.retain();
    Tensor(Ref<TensorImpl>::adopt(&tensor)).requires_grad();  // brings the history of a view up to date
    auto [symbolic, id] = enter(tensor);
    Adopted& adopted = adopted_.emplace_back(tensor, std::move(symbolic), id);
    std::string name = scope_ == nullptr ? "" : scope_->name_of(adopted.handle());
    if (name.empty()) name = fmt::format("p{}", program_.parameters.size());
    program_.parameters.push_back({name, id});
    parameters_.push_back({adopted.handle(), {}, recorded_ && tensor.grad.requires_grad});
  }

  void adopt_gradient(const Tensor& leaf) override {
    adopt(*leaf.impl());
    const auto known = std::find_if(gradients_.begin(), gradients_.end(), [&](const Gradient& each) { return each.leaf.impl() == leaf.impl(); });
    if (known != gradients_.end()) return;
    const autograd::LeafExtra* const extra = autograd::extra_or_null(leaf);
    const Tensor gradient = extra == nullptr ? Tensor() : extra->gradient;
    gradients_.push_back({leaf, gradient, entry_of(leaf)});
    if (!gradient.defined() || is_ours(gradient.impl()->value)) return;
    const size_t before = parameters_.size();
    adopt(*gradient.impl());
    if (parameters_.size() == before) return;  // it is one already, under another name
    parameters_.back().leaf = leaf;
    program_.parameters.back().name = name_of(leaf) + ".grad";
  }

  std::vector<uint32_t> call(const RecordedCall& call) override {
    Op op;
    op.entry = OpTable::instance().find(call.op.name);
    if (op.entry == nullptr || op.entry->op->location != call.op.location) {
      refuse(call.op.name, "it is not in the table of ops. Add the ops of its file: the generated header has a function for that (register_... with OpTable::instance())");
    }
    op.inplace = call.inplace;
    for (const DenseTensor* input : call.inputs) op.inputs.push_back({input == nullptr ? 0 : value_of(*input, call.op.name), 0});
    op.slots.assign(call.slots.begin(), call.slots.end());
    op.attrs = call.attrs;
    op.layout = call.layout;
    op.output_slots.assign(call.output_slots.begin(), call.output_slots.end());
    if (call.op.random) op.draw = call.draw - (is_on_mesh(op) ? world_state_.offset : plain_state_.offset);
    std::vector<std::optional<Type>> types;
    std::vector<ValueId> sources;
    std::vector<bool> writes;
    for (const RecordedOutput& output : call.outputs) {
      types.push_back(output.present ? std::optional(Type{output.meta, output.spec, output.device}) : std::nullopt);
      sources.push_back(output.shares < 0 ? 0 : op.inputs[static_cast<size_t>(output.shares)].value);
      writes.push_back(output.written);
    }
    std::vector<uint32_t> symbols = add(std::move(op), types, sources, std::move(writes));
    for (uint32_t& symbol : symbols) symbol = symbol_of(symbol);
    return symbols;
  }

  DenseTensor reshard(const ReshardPlan& plan, const DenseTensor& piece, std::string_view op_name, std::string_view argument) override {
    Op op;
    const bool relayout = !(plan.after_meta.dims == plan.meta.dims);
    op.kind = relayout ? Kind::relayout : Kind::reshard;
    if (relayout) op.attrs.emplace_back(IntArray(plan.after_meta.dims));
    op.inputs = {{value_of(piece, op_name), 0}};
    op.layout = plan.to;
    op.cause = op_name == "reshard" ? "" : fmt::format("{} {}", op_name, argument);
    const Type type{plan.after_meta, plan.to, piece.device()};
    DenseTensor result = piece_of(type, meter);
    result.set_symbol(symbol_of(add_single(std::move(op), type)));
    return result;
  }

  void copy(DenseTensor& to, const DenseTensor& from) override {
    Op op;
    op.kind = Kind::copy;
    const ValueId target = value_of(to, "copy");
    op.inputs = {{target, 0}, {value_of(from, "copy"), 0}};
    const std::optional<Type> type = program_.value(target).type;
    to.set_symbol(symbol_of(add(std::move(op), {&type, 1}, {&target, 1}, {true})[0]));
  }

  uint32_t convert(Conversion conversion, const DenseTensor& from, const RecordedOutput& to, int source_rank) override {
    constexpr Kind kinds[] = {Kind::distribute, Kind::full, Kind::clone};
    Op op;
    op.kind = kinds[static_cast<size_t>(conversion)];
    op.inputs = {{value_of(from, to_string(op.kind)), 0}};
    op.source_rank = source_rank;
    if (op.kind == Kind::distribute) op.layout = to.spec;
    if (op.kind == Kind::clone) op.attrs.emplace_back(to.device);
    return symbol_of(add_single(std::move(op), {to.meta, to.spec, to.device}));
  }

  void refuse(std::string_view op, std::string_view what) override { fail(ErrorCode::capture, "[{}] cannot be captured: {}", op, what); }

  /// Puts everything outside back as it was.
  void end() {
    if (ended_) return;
    ended_ = true;
    this_thread = before_;
    for (Gradient& each : gradients_) {
      if (adopted_of(each.leaf) == nullptr) continue;
      if (autograd::LeafExtra* const extra = autograd::extra_or_null(each.leaf)) extra->gradient = each.before;
    }
    for (Adopted& each : adopted_) each.restore();
    plain_.set_state(plain_state_);
    if (before_.rank != nullptr) before_.rank->generator.set_state(world_state_);
  }

  Trace finish(std::vector<Tensor> outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      Recorder::adopt(outputs[i]);
      program_.outputs.push_back({fmt::format("output_{}", i), outputs[i].defined() ? value_for_caller(outputs[i]) : 0});
    }
    std::vector<DetachedOutput> detached = detached_outputs(outputs);
    finish_gradients();
    std::optional<TracedGradient> gradient = differentiate(outputs);
    check_adopted();
    finish_draws();
    Trace result{std::move(program_), std::move(parameters_), std::move(require_grad_), std::move(leaves_), std::move(detached), std::move(gradient)};
    outputs.clear();
    end();
    return result;
  }

 private:
  struct Gradient {
    Tensor leaf;
    Tensor before;  // undefined: it had none
    ValueId value;
  };
  struct Buffer {
    Ref<Storage> real, symbolic;
    ValueId first = 0;
    bool moved = false;  // a view that had to move
  };

  /// What stands for an example.
  struct Input {
    Tensor tensor;
    DenseTensor symbolic;
    Type type;
    size_t number;
    bool was_leaf;
  };

  /// Tensors carry the number of their value, with that of the capture above it: one that outlives its capture is found out.
  static constexpr uint32_t kValueBits = (uint32_t{1} << 20) - 1;
  static uint32_t next_tag() {
    static std::atomic<uint32_t> captures{0};
    return (captures++ % 4095 + 1) << 20;
  }
  uint32_t symbol_of(ValueId id) const {
    if (id > kValueBits) fail(ErrorCode::capture, "the captured function makes more than {} tensors; capture parts of it", kValueBits);
    return id == 0 ? 0 : tag_ | id;
  }
  static ValueId value_in(const Tensor& tensor) { return tensor.impl()->value.symbol() & kValueBits; }

  bool is_ours(const DenseTensor& value) const {
    if ((value.symbol() & ~kValueBits) != tag_) return false;
    const Storage& storage = *value.storage();
    return storage.state() == Storage::State::absent || storage.state() == Storage::State::shape_only || storage.meter() == &meter;
  }

  void check_outside(const TensorImpl& tensor) {
    Storage& storage = *tensor.value.storage();
    if (tensor.value.symbol() != 0) {
      fail(ErrorCode::capture, "{} was made while another program was captured, and has no value; use what that program returns when it runs", tensor.describe());
    }
    if (storage.detachment() != nullptr && before_.rank->policies.view == ViewPolicy::sync) {
      const ThreadState capturing = std::exchange(this_thread, before_);
      storage.refresh_if_stale();  // as the call that reads it would
      this_thread = capturing;
    }
    storage.check_read();
  }

  /// A view that had to move reads what it holds, and is not written, as long as its source is not written: calls of the function find out from the
  /// buffers that stand for the two, as eager calls do. Of a source that the function does not use another buffer stands there.
  void tie_moved_views(const Buffer& entered) {
    const auto tie = [](const Buffer& view, const Ref<Storage>& source, uint64_t version) {
      const Detachment& from = *view.real->detachment();
      view.symbolic->detach({source, version, from.op, from.argument, from.from, from.to, {}, {}});
    };
    if (entered.moved) {
      const Detachment& from = *entered.real->detachment();
      const auto source = buffers_.find(from.source.get());
      if (source == buffers_.end()) tie(entered, Storage::absent(), 0);
      else tie(entered, source->second.symbolic, from.source_version);
    }
    for (const auto& [real, view] : buffers_) {
      if (view.moved && view.real->detachment()->source == entered.real) tie(view, entered.symbolic, view.real->detachment()->source_version);
    }
  }

  /// A tensor of the program in place of one from outside, on the buffer that stands for that one's.
  std::pair<DenseTensor, ValueId> enter(const TensorImpl& tensor) {
    const Ref<Storage>& real = tensor.value.storage();
    Buffer& buffer = buffers_[real.get()];
    const Type type = type_of(tensor);
    ValueId id = 0;
    if (!buffer.real) {
      buffer.real = real;
      buffer.symbolic = real->state() == Storage::State::absent ? Storage::absent() : Storage::unallocated(real->device(), real->bytes(), meter);
      buffer.symbolic->set_version(real->version());
      buffer.moved = real->detachment() != nullptr;
      tie_moved_views(buffer);
      id = buffer.first = program_.add_value(type);
    } else {
      id = program_.add_value(type, buffer.first);
    }
    DenseTensor value(buffer.symbolic, tensor.value.meta(), tensor.value.offset());
    value.set_symbol(symbol_of(id));
    return {std::move(value), id};
  }

  ValueId value_of(const DenseTensor& tensor, std::string_view op) {
    if (tensor.symbol() == 0) {
      refuse(op, fmt::format("an argument ({}) comes from computations that were recorded before the capture; compute it inside of the captured function, or give detach() of it",
                             shard::to_string(tensor.meta())));
    }
    return tensor.symbol() & kValueBits;
  }

  bool is_on_mesh(const Op& op) const {
    if (op.layout != nullptr) return true;
    return std::any_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) { return input.value != 0 && program_.value(input.value).type.spec != nullptr; });
  }

  std::vector<uint32_t> add(Op op, std::span<const std::optional<Type>> types, std::span<const ValueId> sources, std::vector<bool> writes) {
    if (op.slots.empty()) {
      for (size_t i = 0; i < op.inputs.size(); ++i) op.slots.push_back({i, 1});
    }
    if (op.output_slots.empty()) {
      for (size_t i = 0; i < types.size(); ++i) op.output_slots.push_back({i, 1});
    }
    if (const Writing* const writing = Writing::current()) op.site = writing->site();
    const int number = program_.add_op(std::move(op), types, sources, std::move(writes));
    return program_.ops[static_cast<size_t>(number)].outputs;
  }
  ValueId add_single(Op op, const Type& type) {
    const std::optional<Type> given = type;
    const ValueId none = 0;
    return add(std::move(op), {&given, 1}, {&none, 1}, {false})[0];
  }

  std::string name_of(const Tensor& tensor) const {
    const ValueId id = value_in(tensor);
    for (const std::vector<Named>* list : {&program_.parameters, &program_.inputs}) {
      for (const Named& each : *list) {
        if (each.value != 0 && program_.value(each.value).root == program_.value(id).root && each.value <= id) return each.name;
      }
    }
    return fmt::format("%{}", id);
  }

  /// The value of the program that a tensor from outside is before any op writes it; 0 for one that the function has made.
  ValueId entry_of(const Tensor& tensor) const {
    if (const Adopted* const adopted = adopted_of(tensor)) return adopted->value();
    const auto input = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& each) { return each.tensor.impl() == tensor.impl(); });
    return input == inputs_.end() ? 0 : input->symbolic.symbol() & kValueBits;
  }

  /// What the caller gets for a tensor. Another handle to one from outside, as detach() gives, must not become that one.
  ValueId value_for_caller(const Tensor& tensor) {
    const ValueId id = value_in(tensor);
    if (id == 0 || entry_of(tensor) != 0 || program_.value(handle_of(program_, id)).op >= 0) return id;
    const std::optional<Type> type = program_.value(id).type;
    return add(make_alias(id, *type), {&type, 1}, {&id, 1}, {false})[0];
  }

  const Adopted* adopted_of(const Tensor& tensor) const {
    const auto found = std::find_if(adopted_.begin(), adopted_.end(), [&](const Adopted& each) { return each.handle().impl() == tensor.impl(); });
    return found == adopted_.end() ? nullptr : &*found;
  }

  bool is_moved_entry(const Storage& symbolic) const {
    return std::any_of(buffers_.begin(), buffers_.end(), [&](const auto& each) { return each.second.moved && each.second.symbolic.get() == &symbolic; });
  }

  /// What the caller will see of views that have parted from their sources: sources that nobody sees any more do not matter.
  std::vector<DetachedOutput> detached_outputs(const std::vector<Tensor>& outputs) {
    std::unordered_map<const Storage*, ValueId> seen;
    for (const auto& [real, buffer] : buffers_) seen[buffer.symbolic.get()] = buffer.first;
    for (const Tensor& output : outputs) {
      if (output.defined()) seen.emplace(output.impl()->value.storage().get(), value_in(output));
    }
    std::vector<DetachedOutput> detached;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) continue;
      const Storage& storage = *outputs[i].impl()->value.storage();
      const Detachment* const from = storage.detachment();
      if (from == nullptr || is_moved_entry(storage)) continue;
      // A view of a view has parted from the first source that the caller sees.
      const Detachment* link = from;
      while (link != nullptr && !seen.contains(link->source.get())) link = link->source->detachment();
      if (link == nullptr && !storage.stale()) continue;
      if (from->refresh && before_.rank->policies.view == ViewPolicy::sync) {
        fail(ErrorCode::capture, "the captured function returns a view by [{}] of '{}', which had to move, and ViewPolicy::sync would keep the two in step after each run; return "
             "a copy (assign), or give '{}' the layout {} before", from->op, from->argument, from->argument, from->to);
      }
      detached.push_back({i, link == nullptr ? value_in(outputs[i]) : seen.at(link->source.get()), storage.stale(), from->op, from->argument, from->from, from->to});
    }
    return detached;
  }

  /// The backward pass of what the function has returned.
  std::optional<TracedGradient> differentiate(const std::vector<Tensor>& outputs) {
    TracedGradient gradient;
    std::vector<Tensor> from, leaves;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined() || !outputs[i].requires_grad() || outputs[i].is_leaf() || !is_whole(outputs[i])) continue;
      gradient.outputs.push_back(i);
      from.push_back(outputs[i]);
    }
    if (from.empty()) return std::nullopt;
    for (const Input& input : inputs_) {
      if (input.tensor.requires_grad()) leaves.push_back(input.tensor);
    }
    for (const Adopted& each : adopted_) {
      if (each.handle().requires_grad()) leaves.push_back(each.handle());
    }
    want_all(gradient, leaves);
    gradient.forward_ops = program_.ops.size();
    gradient.function_inputs = program_.inputs.size();
    gradient.function_outputs = program_.outputs.size();
    gradient.plain_draws = plain_.state().offset - plain_state_.offset;
    if (before_.rank != nullptr) gradient.world_draws = before_.rank->generator.state().offset - world_state_.offset;
    const Program forward = program_;
    try {
      add_gradients(gradient, from, leaves);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::autograd) throw;
      program_ = forward;
      want_all(gradient, leaves);
      gradient.error = error.what();
    }
    return gradient;
  }

  /// All outputs in one group.
  void want_all(TracedGradient& gradient, const std::vector<Tensor>& leaves) const {
    gradient.wanted.clear();
    for (const Tensor& each : leaves) gradient.wanted.push_back(entry_of(each));
    gradient.output_groups.assign(gradient.outputs.size(), 0);
    gradient.wanted_groups.assign(gradient.wanted.size(), 0);
  }

  void add_gradients(TracedGradient& gradient, const std::vector<Tensor>& from, const std::vector<Tensor>& leaves) {
    std::vector<Tensor> given;
    for (size_t i = 0; i < from.size(); ++i) {
      Type type = type_of(from[i].get());
      if (type.spec != nullptr) type.spec = autograd::gradient_layout(type.spec);
      given.push_back(new_tensor(type));
      program_.inputs.push_back({fmt::format("grad_{}", program_.outputs[gradient.outputs[i]].name), value_in(given.back())});
    }
    gradient.output_groups = groups_of(from);
    for (size_t group = 0; group < group_count(gradient); ++group) {
      std::vector<Tensor> outputs, of_outputs;
      for (size_t i = 0; i < from.size(); ++i) {
        if (gradient.output_groups[i] != group) continue;
        outputs.push_back(from[i]);
        of_outputs.push_back(given[i]);
      }
      const std::vector<Tensor> found = grad(outputs, leaves, of_outputs, {.retain_graph = true}, /*allow_unused=*/true);
      for (size_t i = 0; i < leaves.size(); ++i) {
        const std::string name = "grad_" + name_of(leaves[i]);
        if (group == 0) {
          program_.outputs.push_back({name, found[i].defined() ? value_in(found[i]) : 0});
        } else if (found[i].defined()) {
          program_.outputs.push_back({fmt::format("{}_{}", name, group + 1), value_in(found[i])});
          gradient.wanted.push_back(entry_of(leaves[i]));
          gradient.wanted_groups.push_back(group);
        }
      }
    }
  }

  /// Whether the steps that made a tensor still have what they saved.
  static bool is_whole(const Tensor& tensor) {
    std::vector<const autograd::Node*> found;
    std::unordered_set<const autograd::Node*> seen;
    const autograd::OwnedEdge start = autograd::edge_of(tensor);
    const auto visit = [&](const autograd::Node* node) {
      if (node != nullptr && seen.insert(node).second) found.push_back(node);
    };
    visit(start.get());
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i]->released()) return false;
      for (const autograd::Edge& edge : found[i]->edges()) visit(edge.node);
    }
    return true;
  }

  /// A tensor that the program is given.
  Tensor new_tensor(const Type& type) {
    DenseTensor piece = piece_of(type, meter);
    piece.set_symbol(symbol_of(program_.add_value(type)));
    return type.spec == nullptr ? Tensor(std::move(piece)) : make_dist(*before_.rank, type.meta, type.spec, std::move(piece));
  }

  /// What the function leaves in the gradients of leaves.
  void finish_gradients() {
    for (Gradient& each : gradients_) {
      const autograd::LeafExtra* const extra = autograd::extra_or_null(each.leaf);
      const Tensor now = extra == nullptr ? Tensor() : extra->gradient;
      const auto input = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& other) { return other.tensor.impl() == each.leaf.impl(); });
      const Adopted* const adopted = adopted_of(each.leaf);
      if (input == inputs_.end() && adopted == nullptr) continue;  // a leaf of the function itself
      const bool changed = now.impl() != each.before.impl();
      if (changed && !(adopted != nullptr ? adopted->was_leaf() : input->was_leaf)) {
        fail(ErrorCode::capture, "[backward] cannot be captured: it goes on into what {} was computed from, before the captured function. Give detach() of it, or call backward "
             "outside", each.leaf.get().describe());
      }
      const bool is_input = input != inputs_.end();
      leaves_.push_back({is_input ? Tensor() : each.leaf, is_input ? input->number : 0, each.value, each.before.defined()});
      if (!changed) continue;
      Recorder::adopt(now);
      program_.gradients.push_back({each.value, now.defined() ? value_for_caller(now) : 0});
    }
  }

  void check_adopted() const {
    for (const Input& each : inputs_) check_kept(each.type, each.tensor.impl()->value.storage() == each.symbolic.storage() && type_of(*each.tensor.impl()) == each.type,
                                                 !each.tensor.impl()->grad.node);
    for (const Adopted& each : adopted_) check_kept(each.type(), each.same_place(), each.same_history());
    for (const auto& [real, buffer] : buffers_) {
      const Detachment* const parted = buffer.symbolic->detachment();
      if (parted != nullptr && !buffer.moved) {
        fail(ErrorCode::capture, "[{}] in the captured function gives another buffer to what shares that of a tensor from outside ({}), so that the two part in each run; give it a "
             "copy (assign), or call the op that is not in place", parted->op, to_string(program_.value(buffer.first).type));
      }
    }
  }

  static void check_kept(const Type& type, bool same_place, bool same_history) {
    if (!same_place) {
      fail(ErrorCode::capture, "the captured function gives a tensor from outside ({}) another shape, dtype, layout or buffer, which each run would do again; write its elements "
           "alone, or return the new tensor", to_string(type));
    }
    if (!same_history) {
      fail(ErrorCode::capture, "the captured function writes what requires a gradient into a tensor from outside ({}), which would get a history in each run; write detach() of it, "
           "or write under NoGrad", to_string(type));
    }
  }

  void finish_draws() {
    const RandomKey plain = plain_.state();
    program_.plain_draws = plain.offset - plain_state_.offset;
    bool seeded = plain.seed != plain_state_.seed;
    if (before_.rank != nullptr) {
      const RandomKey world = before_.rank->generator.state();
      program_.world_draws = world.offset - world_state_.offset;
      seeded = seeded || world.seed != world_state_.seed;
    }
    if (seeded) fail(ErrorCode::capture, "the captured function sets the seed of a generator, which each run would do again; set it outside");
  }

  const Scope* scope_;
  const ThreadState before_;
  const bool recorded_;
  Generator& plain_;
  const RandomKey plain_state_;
  RandomKey world_state_;
  bool ended_ = false;
  const uint32_t tag_ = next_tag();
  Program program_;
  std::unordered_map<const Storage*, Buffer> buffers_;  // from outside
  std::vector<Adopted> adopted_;
  std::vector<Parameter> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<Input> inputs_;
  std::vector<bool> require_grad_;
  std::vector<Leaf> leaves_;
};

/// Ends a capture. Where tensors of the program outlive it, which the function has put away somewhere, what counts their bytes has to stay.
class Keeper {
 public:
  explicit Keeper(std::unique_ptr<CaptureRecorder>& recorder) : recorder_(recorder) {}
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper() {
    recorder_->end();
    if (recorder_->meter.live == 0) return;
    static std::mutex mutex;
    static std::vector<std::unique_ptr<CaptureRecorder>> kept;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(recorder_));
  }

 private:
  std::unique_ptr<CaptureRecorder>& recorder_;
};

}  // namespace

Trace trace(const Function& function, const std::vector<Tensor>& inputs, const Scope* scope) {
  if (Recorder::current() != nullptr) {
    fail(ErrorCode::capture, "a captured function captures another one; call the inner function itself there, it becomes part of the program");
  }
  auto recorder = std::make_unique<CaptureRecorder>(scope);
  const Keeper keeper(recorder);
  return recorder->finish(function(recorder->make_inputs(inputs)));
}

}  // namespace shard::program

#include "program/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <unordered_set>

#include "autograd/autograd.h"
#include "autograd/boundary.h"
#include "autograd/leaf.h"
#include "autograd/rerun.h"
#include "call/dense_call.h"
#include "core/recorder.h"
#include "core/writing.h"
#include "dist/dist_tensor.h"
#include "program/adopted.h"
#include "program/alias.h"
#include "program/groups.h"
#include "program/meters.h"
#include "program/rewrite.h"
#include "program/steps.h"
#include "reshard/plan.h"

namespace shard::program {
namespace {

using TensorSet = std::unordered_set<const TensorImpl*>;

class CaptureRecorder final : Metered, public Recorder {
 public:
  /// `shared`: example inputs that the function uses from outside too.
  CaptureRecorder(const Scope* scope, const TensorSet& shared, const autograd::NoBoundary& apart)
      : Recorder(counted_), scope_(scope), shared_(shared), apart_(apart), before_(this_thread), recorded_(grad_enabled()), plain_(call::thread_generator()), plain_state_(plain_.state()) {
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
      require_grad_.push_back(recorded_ && example.defined() && example.requires_grad());
      const size_t number = inputs.size();
      Tensor& input = inputs.emplace_back();
      ValueId id = 0;
      if (example.defined()) {
        const auto [first, is_new] = numbers_.emplace(example.impl().get(), number);
        input = is_new ? make_input(example, number) : inputs[first->second];
        id = value_in(input);
      }
      program_.inputs.push_back({fmt::format("input_{}", number), id});
    }
    return inputs;
  }

  void made(const Storage& storage) override { made_.insert(&storage); }

  void adopt(TensorImpl& tensor) override {
    const DenseTensor& value = tensor.value;
    if (is_ours(value) || value.storage()->state() == Storage::State::shape_only) return;
    check_outside(tensor);
    if (value.storage()->state() == Storage::State::held && made_.contains(value.storage().get())) return adopt_made(tensor);
    tensor.retain();
    update_history(Tensor(Ref<TensorImpl>::adopt(&tensor)));
    auto [symbolic, id] = enter(tensor);
    Adopted& adopted = adopted_.emplace_back(tensor, std::move(symbolic), id);
    std::string name = scope_ == nullptr ? "" : scope_->name_of(adopted.handle());
    program_.parameters.push_back({name.empty() ? numbered_name("p") : name, id});
    parameters_.push_back({.tensor = adopted.handle(), .leaf = {}, .requires_grad = recorded_ && tensor.grad.requires_grad});
  }

  void adopt_gradient(const Tensor& leaf) override {
    adopt(*leaf.impl());
    const auto known = std::find_if(gradients_.begin(), gradients_.end(), [&](const Gradient& each) { return each.leaf.impl() == leaf.impl(); });
    if (known != gradients_.end()) return;
    const autograd::LeafExtra* const extra = autograd::extra_or_null(leaf);
    const Tensor gradient = extra == nullptr ? Tensor() : extra->gradient;
    gradients_.push_back({leaf, gradient, entry_of(leaf)});
    if (!gradient.defined() || entry_of(leaf) == 0) return;
    const size_t before = parameters_.size();
    adopt(*gradient.impl());
    if (parameters_.size() == before) {  // it is one already: in each run the two have to be one tensor
      program_.parameters.push_back({"", entry_of(gradient)});
      parameters_.emplace_back();
    }
    const Input* const input = input_of(leaf.get());
    if (input == nullptr) parameters_.back() = {.tensor = {}, .leaf = leaf};
    else parameters_.back() = {.tensor = {}, .leaf = {}, .leaf_input = static_cast<int>(input->number)};
    program_.parameters.back().name = free_name(name_of(leaf) + ".grad");
  }

  bool was_computed(const TensorImpl& tensor) const override {
    if (const Input* const input = input_of(tensor)) return !input->was_leaf;
    const Adopted* const adopted = adopted_of(tensor);
    return adopted != nullptr && !adopted->was_leaf();
  }

  /// The example inputs that the function has used from outside too, where that matters: two tensors stand for one leaf, which has one gradient.
  TensorSet found_shared() const {
    TensorSet found;
    for (const Adopted& each : adopted_) {
      const TensorImpl* const tensor = each.handle().impl().get();
      const auto number = numbers_.find(tensor);
      if (number == numbers_.end() || shared_.contains(tensor)) continue;
      const bool touched = std::any_of(gradients_.begin(), gradients_.end(), [&](const Gradient& gradient) {
        const Input* const input = input_of(gradient.leaf.get());
        return gradient.leaf.impl().get() == tensor || (input != nullptr && input->number == number->second);
      });
      if (touched || (recorded_ && each.required_grad())) found.insert(tensor);
    }
    return found;
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
      if (adopted_of(each.leaf.get()) == nullptr) continue;
      if (autograd::LeafExtra* const extra = autograd::extra_or_null(each.leaf)) extra->gradient = each.before;
    }
    for (Adopted& each : adopted_) each.restore();
    for (Constant& each : constants_) each.restore();
    plain_.set_state(plain_state_);
    if (before_.rank != nullptr) before_.rank->generator.set_state(world_state_);
  }

  Trace finish(std::vector<Tensor> outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      Recorder::adopt(outputs[i]);
      program_.outputs.push_back({fmt::format("output_{}", i), outputs[i].defined() ? value_for_caller(outputs[i]) : 0});
    }
    std::vector<DetachedOutput> detached = detached_outputs(outputs);
    std::vector<ViewOutput> views = view_outputs(outputs);
    const size_t written = add_written(outputs);
    finish_gradients();
    std::optional<TracedGradient> gradient = differentiate(outputs);
    check_adopted();
    finish_draws();
    Trace result{std::move(program_), std::move(parameters_), std::move(require_grad_), std::move(leaves_), written, std::move(detached), std::move(views), std::move(gradient)};
    outputs.clear();
    end();
    return result;
  }

  /// After finish(): throws where the function has put away what it changes.
  void check_constants() {
    gradients_.clear();
    inputs_.clear();
    for (const Constant& each : constants_) {
      if (!each.escapes()) continue;
      fail(ErrorCode::capture, "the captured function keeps a tensor that it makes from data and then changes ({}), but each run makes its own; make it outside of the function, "
           "so that all runs read and write that one", each.handle().get().describe());
    }
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
    bool was_view;
    bool required_grad;
    const Storage* real;
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

  Tensor make_input(const Tensor& example, size_t number) {
    TensorImpl& impl = example.get();
    if (shared_.contains(&impl)) {
      adopt(impl);
      return example;
    }
    check_outside(impl);
    update_history(example);
    auto [value, id] = enter(impl);
    const Tensor input(impl.alias());
    input.impl()->value = std::move(value);
    input.impl()->grad.requires_grad = example.requires_grad();
    inputs_.push_back({input, input.impl()->value, type_of(impl), number, example.is_leaf(), static_cast<bool>(impl.grad.root), example.requires_grad(), impl.value.storage().get()});
    if (const autograd::LeafExtra* const extra = autograd::extra_or_null(example)) {
      autograd::LeafExtra& own = autograd::extra_of(input);
      own.gradient = extra->gradient;
      own.layout = extra->layout;
      own.hooks = extra->hooks;
    }
    return input;
  }

  /// One that the function has made with its elements.
  void adopt_made(TensorImpl& tensor) {
    if (buffers_.contains(tensor.value.storage().get())) {
      refuse("from_data", fmt::format("{} shares its buffer with another tensor that the function has made with its elements; make the one as a view of the other", tensor.describe()));
    }
    parameters_.push_back({.tensor = Tensor(tensor.alias()), .leaf = {}, .constant = true});
    const ValueId id = enter(tensor).second;
    program_.parameters.push_back({numbered_name("constant_"), id});
    const Type type = type_of(tensor);
    Op op;
    op.kind = Kind::clone;
    op.inputs = {{id, 0}};
    op.attrs.emplace_back(type.device);
    DenseTensor copy = piece_of(type, meter);
    copy.set_symbol(symbol_of(add_single(std::move(op), type)));
    constants_.emplace_back(tensor, std::move(copy));
  }

  bool is_free(const std::string& name) const {
    const auto same = [&](const Named& other) { return other.name == name; };
    return !(scope_ != nullptr && scope_->has(name)) && std::none_of(program_.parameters.begin(), program_.parameters.end(), same);
  }
  /// A name that neither the program nor the scope has.
  std::string numbered_name(std::string_view stem) const {
    for (size_t number = program_.parameters.size();; ++number) {
      if (std::string name = fmt::format("{}{}", stem, number); is_free(name)) return name;
    }
  }
  std::string free_name(std::string name) const {
    while (!is_free(name)) name += '_';
    return name;
  }

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
    if (!storage.stale()) storage.check_read();
  }

  /// Of a view whose buffer was written. What that records is outside of the capture.
  void update_history(const Tensor& tensor) const {
    const autograd::NoBoundary::Lifted outside(apart_);
    tensor.requires_grad();
  }

  ViewPolicy view_policy() const { return before_.rank == nullptr ? ViewPolicy::strict : before_.rank->policies.view; }

  /// A view that had to move reads what it holds, and is not written, as long as its source is not written: calls of the function find out from the
  /// buffers that stand for the two, as eager calls do. Of sources that the function does not use, and of one that makes the view stale before it
  /// is called, another buffer stands there; a view that each run brings up to date (ViewPolicy::sync) is not stale.
  void tie_moved_view(const Buffer& view) const {
    const Detachment& from = *view.real->detachment();
    const Storage* const known = nearest_source(*view.real, [&](const Storage* source) { return buffers_.contains(source); });
    Ref<Storage> source = known == nullptr ? Storage::absent() : buffers_.at(known).symbolic;
    uint64_t version = known == nullptr ? 0 : known->version();
    if (view_policy() == ViewPolicy::strict && view.real->stale()) {
      source = Storage::absent();
      source->bump(writer_of(*view.real));
      version = 0;
    }
    view.symbolic->detach({source, version, from.op, from.argument, from.from, from.to, {}, {}});
  }

  /// Who has made a view stale.
  static const char* writer_of(const Storage& view) {
    const Detachment* from = view.detachment();
    while (from->source->version() == from->source_version) from = from->source->detachment();
    return from->source->last_write() == nullptr ? "an op" : from->source->last_write()->op;
  }

  void tie_moved_views(const Buffer& entered) const {
    if (entered.moved) tie_moved_view(entered);
    for (const auto& [real, view] : buffers_) {
      const bool parted = view.symbolic->detachment() == nullptr;  // the function has written it, or read it stale, under ViewPolicy::temporary
      if (view.moved && !parted && &view != &entered) tie_moved_view(view);
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
      // Under ViewPolicy::temporary a stale one parts when the program reads it.
      buffer.moved = real->detachment() != nullptr && !(view_policy() == ViewPolicy::temporary && real->stale());
      tie_moved_views(buffer);
      id = buffer.first = program_.add_value(type);
    } else {
      id = program_.add_value(type, buffer.first);
    }
    ++buffer.tensors;
    DenseTensor value(buffer.symbolic, tensor.value.meta(), tensor.value.offset());
    value.set_symbol(symbol_of(id));
    return {std::move(value), id};
  }

  ValueId value_of(const DenseTensor& tensor, std::string_view op) {
    if (tensor.symbol() == 0) {
      refuse(op, fmt::format("an argument ({}) comes from computations that were recorded before the capture; compute it inside of the captured function, or give detach() of it",
                             shard::to_string(tensor.meta())));
    }
    if ((tensor.symbol() & ~kValueBits) != tag_) {
      refuse(op, fmt::format("an argument ({}) was made while another program was captured, and has no value; use what that program returns when it runs", shard::to_string(tensor.meta())));
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
    if (const Adopted* const adopted = adopted_of(tensor.get())) return adopted->value();
    const Input* const input = input_of(tensor.get());
    return input == nullptr ? 0 : input->symbolic.symbol() & kValueBits;
  }

  /// What the caller gets for a tensor. Another handle to one from outside, as detach() gives, must not become that one.
  ValueId value_for_caller(const Tensor& tensor) {
    const ValueId id = value_in(tensor);
    if (id == 0 || entry_of(tensor) != 0 || program_.value(handle_of(program_, id)).op >= 0) return id;
    const std::optional<Type> type = program_.value(id).type;
    return add(make_alias(id, *type), {&type, 1}, {&id, 1}, {false})[0];
  }

  const Adopted* adopted_of(const TensorImpl& tensor) const {
    const auto found = std::find_if(adopted_.begin(), adopted_.end(), [&](const Adopted& each) { return each.handle().impl().get() == &tensor; });
    return found == adopted_.end() ? nullptr : &*found;
  }
  const Input* input_of(const TensorImpl& tensor) const {
    const auto found = std::find_if(inputs_.begin(), inputs_.end(), [&](const Input& each) { return each.tensor.impl().get() == &tensor; });
    return found == inputs_.end() ? nullptr : &*found;
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
             "a copy (assign(x)), or give '{}' the layout {} before", from->op, from->argument, from->argument, from->to);
      }
      detached.push_back({i, link == nullptr ? value_in(outputs[i]) : seen.at(link->source.get()), storage.stale(), from->op, from->argument, from->from, from->to});
    }
    return detached;
  }

  /// Arguments that the function has given a history become outputs, so that each run gives them one. Returns how many are so beside those that it returns.
  size_t add_written(std::vector<Tensor>& outputs) {
    const size_t returned = outputs.size();
    const auto add = [&](const Tensor& tensor, bool was_view, const Storage* real) {
      if (!tensor.get().grad.node) return;
      if (was_view || buffers_.at(real).tensors != 1 || !is_whole(tensor)) {
        fail(ErrorCode::capture, "the captured function writes what requires a gradient into a tensor from outside ({}) that {}; write a copy (assign(x)) or detach() of it, or write under "
             "NoGrad", tensor.get().describe(), was_view ? "is a view, so that what it is a view of would get a history in each run" : "shares its buffer with another argument, or goes through that write backwards");
      }
      const auto same = [&](const Tensor& output) { return output.impl() == tensor.impl(); };
      if (std::any_of(outputs.begin(), outputs.end(), same)) return;
      program_.outputs.push_back({"written_" + name_of(tensor), value_in(tensor)});
      outputs.push_back(tensor);
    };
    for (const Input& each : inputs_) add(each.tensor, each.was_view, each.real);
    for (const Adopted& each : adopted_) add(each.handle(), each.was_view(), each.real());
    return outputs.size() - returned;
  }

  /// Arguments as they were before the function wrote them.
  static std::vector<Tensor> as_entered(std::vector<Tensor> arguments) {
    for (Tensor& each : arguments) {
      if (!each.get().grad.node) continue;
      autograd::OwnedEdge start = autograd::edge_of_leaf(each);
      each = Tensor(each.impl()->alias());
      GradState& state = each.get().grad;
      state.requires_grad = true;
      state.node = std::move(start.node);
      state.output = start.output;
    }
    return arguments;
  }

  /// Which outputs are views, and of what the caller sees.
  std::vector<ViewOutput> view_outputs(const std::vector<Tensor>& outputs) const {
    std::vector<ViewOutput> views;
    std::unordered_map<const TensorImpl*, size_t> first;  // the output that stands for what it is a view of
    for (size_t i = outputs.size(); i-- > 0;) {
      if (outputs[i].defined()) first[outputs[i].impl().get()] = i;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].defined()) continue;
      const TensorImpl& view = outputs[i].get();
      const Ref<TensorImpl>& root = view.grad.root;
      if (!root || !(root->value.storage() == view.value.storage())) continue;
      const ValueId source = entry_of(Tensor(root));
      const size_t other = source != 0 ? 0 : first.emplace(root.get(), i).first->second;
      if (source != 0 || other != i) views.push_back({i, source, other});
    }
    return views;
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
      if (input.required_grad) leaves.push_back(input.tensor);
    }
    for (const Adopted& each : adopted_) {
      if (each.required_grad()) leaves.push_back(each.handle());
    }
    want_all(gradient, leaves);
    if (from.size() > 1) gradient.reaches = reached(from, as_entered(leaves));
    gradient.forward_ops = program_.ops.size();
    gradient.function_inputs = program_.inputs.size();
    gradient.function_outputs = program_.outputs.size();
    gradient.plain_draws = plain_.state().offset - plain_state_.offset;
    if (before_.rank != nullptr) gradient.world_draws = before_.rank->generator.state().offset - world_state_.offset;
    const Program forward = program_;
    const size_t parameters = parameters_.size();
    const autograd::RandomState drawn = autograd::RandomState::now();
    try {
      add_gradients(gradient, from, leaves);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::autograd) throw;
      program_ = forward;
      parameters_.resize(parameters);
      std::erase_if(buffers_, [&](const auto& each) { return each.second.first >= program_.value_count(); });
      drawn.restore();
      want_all(gradient, leaves);
      gradient.reaches.clear();
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
      const std::vector<Tensor> found = grad(outputs, as_entered(leaves), of_outputs, {.retain_graph = true}, /*allow_unused=*/true);
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
      const Input* const input = input_of(each.leaf.get());
      const Adopted* const adopted = adopted_of(each.leaf.get());
      if (input == nullptr && adopted == nullptr) continue;  // a leaf of the function itself
      const bool changed = now.impl() != each.before.impl();
      if (changed && !(adopted != nullptr ? adopted->was_leaf() : input->was_leaf)) {
        fail(ErrorCode::capture, "[backward] cannot be captured: it goes on into what {} was computed from, before the captured function. Give detach() of it, or call backward "
             "outside", each.leaf.get().describe());
      }
      leaves_.push_back({input != nullptr ? Tensor() : each.leaf, input != nullptr ? input->number : 0, each.value, each.before.defined()});
      if (!changed) continue;
      Recorder::adopt(now);
      program_.gradients.push_back({each.value, now.defined() ? value_for_caller(now) : 0});
    }
  }

  void check_adopted() const {
    for (const Input& each : inputs_) {
      const TensorImpl& impl = *each.tensor.impl();
      check_kept(impl, each.type, impl.value.storage() == each.symbolic.storage() && type_of(impl) == each.type, each.required_grad);
    }
    for (const Adopted& each : adopted_) check_kept(*each.handle().impl(), each.type(), each.same_place(), each.required_grad());
    for (const auto& [real, buffer] : buffers_) {
      const Detachment* const parted = buffer.symbolic->detachment();
      if (parted != nullptr && !buffer.moved) {
        fail(ErrorCode::capture, "[{}] in the captured function gives another buffer to what shares that of a tensor from outside ({}), so that the two part in each run; give it a "
             "copy (assign(x)), or call the op that is not in place", parted->op, to_string(program_.value(buffer.first).type));
      }
    }
  }

  static void check_kept(const TensorImpl& tensor, const Type& type, bool same_place, bool required_grad) {
    if (!same_place) {
      fail(ErrorCode::capture, "the captured function gives a tensor from outside ({}) another shape, dtype, layout or buffer, which each run would do again; write its elements "
           "alone, or return the new tensor", to_string(type));
    }
    if (tensor.grad.requires_grad != required_grad && !tensor.grad.node) {
      fail(ErrorCode::capture, "the captured function changes whether a tensor from outside ({}) requires a gradient, which each run would do again; call set_requires_grad "
           "outside, or on detach() of it, which is a tensor of the function", to_string(type));
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
  const TensorSet& shared_;
  const autograd::NoBoundary& apart_;
  const ThreadState before_;
  const bool recorded_;
  Generator& plain_;
  const RandomKey plain_state_;
  RandomKey world_state_;
  bool ended_ = false;
  const uint32_t tag_ = next_tag();
  Program program_;
  std::unordered_map<const Storage*, Buffer> buffers_;  // from outside
  std::unordered_set<const Storage*> made_;  // by the function, with bytes
  std::unordered_map<const TensorImpl*, size_t> numbers_;  // of the example inputs
  std::vector<Adopted> adopted_;
  std::vector<Constant> constants_;
  std::vector<Parameter> parameters_;
  std::vector<Gradient> gradients_;
  std::vector<Input> inputs_;
  std::vector<bool> require_grad_;
  std::vector<Leaf> leaves_;
};

}  // namespace

Trace trace(const Function& function, const std::vector<Tensor>& inputs, const Scope* scope) {
  if (!function) fail(ErrorCode::invalid_argument, "[trace] there is no function to capture; give one that takes and returns tensors");
  if (Recorder::current() != nullptr) {
    fail(ErrorCode::capture, "a captured function captures another one; call the inner function itself there, it becomes part of the program");
  }
  const autograd::NoBoundary apart;
  // Whether the function uses an input from outside too is known when it has run. Then it runs once more, where one tensor is both.
  for (TensorSet shared;;) {
    CaptureRecorder recorder(scope, shared, apart);
    TensorSet more;
    try {
      Trace result = recorder.finish(function(recorder.make_inputs(inputs)));
      more = recorder.found_shared();
      if (more.empty()) {
        recorder.check_constants();
        return result;
      }
    } catch (...) {
      more = recorder.found_shared();
      if (more.empty()) throw;
    }
    shared.insert(more.begin(), more.end());
  }
}

}  // namespace shard::program

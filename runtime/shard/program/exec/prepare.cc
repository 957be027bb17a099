#include <algorithm>
#include <functional>
#include <unordered_map>

#include "shard/call/binder.h"
#include "shard/call/float32_call.h"
#include "shard/call/mesh_reducer.h"
#include "shard/call/plan_call.h"
#include "shard/comm/buffers.h"
#include "shard/core/error.h"
#include "shard/dist/dist_tensor.h"
#include "shard/program/exec/executor_parts.h"
#include "shard/program/ir/infer.h"
#include "shard/reshard/execute.h"
#include "shard/reshard/reshard.h"

namespace shard::program {

using call::Binder;
using call::BoundStep;

namespace {

/// A reshard, or another conversion of one tensor. It allocates its result, so the root of the result
/// is set when the step runs.
class ConversionStep final : public BoundStep {
 public:
  using Convert = std::function<DenseTensor(const DenseTensor& from)>;
  using SetResult = std::function<void(const DenseTensor& result)>;
  ConversionStep(DenseTensor from, Convert convert, SetResult set_result)
      : from_(std::move(from)), convert_(std::move(convert)), set_result_(std::move(set_result)) {}
  DenseTensor& from() { return from_; }
  void run() override { set_result_(convert_(from_)); }

 private:
  DenseTensor from_;
  Convert convert_;
  SetResult set_result_;
};

/// Several reshards whose steps are combined into shared collectives.
class CombinedReshardsStep final : public BoundStep {
 public:
  struct Part {
    std::shared_ptr<const ReshardPlan> plan;
    DenseTensor from;
    ConversionStep::SetResult set_result;
  };
  CombinedReshardsStep(Rank& rank, std::vector<Part> parts, std::string_view cause)
      : rank_(rank), parts_(std::move(parts)), cause_(cause) {
    for (const Part& part : parts_) plans_.push_back(part.plan.get());
  }
  std::vector<Part>& parts() { return parts_; }
  void run() override {
    std::vector<DenseTensor> from;
    for (const Part& part : parts_) {
      observe_move(rank_, cause_, "tensor", *part.plan);
      from.push_back(part.from);
    }
    const std::vector<DenseTensor> results = execute_reshards(rank_, plans_, from, {cause_, "tensors"});
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].set_result(results[i]);
  }

 private:
  Rank& rank_;
  std::vector<Part> parts_;
  std::vector<const ReshardPlan*> plans_;
  std::string_view cause_;
};

class IdentityStep final : public BoundStep {
 public:
  IdentityStep(DenseTensor shard, ReduceType type) : shard_(std::move(shard)), type_(type) {}
  DenseTensor& shard() { return shard_; }
  void run() override { fill_identity(shard_.device(), shard_.raw(), shard_.numel(), shard_.dtype(), type_); }

 private:
  DenseTensor shard_;
  ReduceType type_;
};

}  // namespace

/// Prepares ops one after the other.
class Executor::Build {
 public:
  Build(Executor& executor, const Arguments& arguments)
      : executor_(executor), program_(executor.program_), arguments_(arguments) {}

  void run() {
    executor_.places_.resize(program_.value_count());
    enter(program_.inputs, arguments_.inputs, 1);
    enter(program_.parameters, arguments_.parameters, 1 + program_.inputs.size());
    for (op_ = 0; op_ < program_.ops.size(); ++op_) {
      const size_t combined = combined_reshards();
      if (combined > 1) bind_combined(combined);
      else bind(program_.ops[op_]);
    }
    for (const Named& output : program_.outputs) keep(output.value);
    for (const GradientEffect& effect : program_.gradients) keep(effect.gradient);
  }

 private:
  Place& place_of(ValueId id) { return executor_.places_[id]; }
  const Type& type_of(ValueId id) const { return program_.value(id).type; }

  /// `first` is the number of the first of them as an argument.
  void enter(const std::vector<Named>& names, const std::vector<Tensor>& tensors, size_t first) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].value == 0 || !tensors[i].defined()) continue;  // absent, or only its shape is read
      if (place_of(names[i].value).root != nullptr) continue;      // the same tensor again
      const Value& value = program_.value(names[i].value);
      const DenseTensor& real = tensors[i].get().value;
      Root* root = place_of(value.root).root;
      if (value.source == 0)
        root = &new_root(Root::Kind::entry, real.storage()->state() == Storage::State::absent
                                                ? Storage::absent()
                                                : stand_in(real.device(), 0));
      place_of(names[i].value) = {DenseTensor(root->stand_in, real.meta(), real.offset()), root, first + i};
    }
  }

  Ref<Storage> stand_in(Device device, size_t bytes) { return Storage::unallocated(device, bytes, executor_.meter_); }

  Root& new_root(Root::Kind kind, Ref<Storage> storage) {
    Root& root = *executor_.roots_.emplace_back(std::make_unique<Root>());
    root.kind = kind;
    root.bytes = storage->bytes();
    root.first = root.last = op_;
    by_storage_[storage.get()] = &root;
    if (storage->state() == Storage::State::absent) root.now = storage;
    root.stand_in = std::move(storage);
    return root;
  }

  /// The root that a tensor of a step is on. A storage that is not known yet is a buffer of this
  /// op.
  Root& root_of(const DenseTensor& tensor) {
    const auto found = by_storage_.find(tensor.storage().get());
    Root& root = found == by_storage_.end() ? new_root(Root::Kind::planned, tensor.storage()) : *found->second;
    root.last = op_;
    return root;
  }

  void hold(DenseTensor& tensor) {
    if (!tensor.defined()) return;
    Root& root = root_of(tensor);
    root.tensors.push_back(&tensor);
    root.offsets.push_back(tensor.offset());
  }

  void set_output(ValueId id, DenseTensor tensor) {
    if (id == 0) return;
    if (!tensor.defined())
      fail(ErrorCode::internal, "[{}] has not returned a tensor for %{} of its program", program_.ops[op_].name(), id);
    Root& root = root_of(tensor);
    place_of(id) = {std::move(tensor), &root, 0};
  }

  /// The input as the op reads it. An input of which only the shape is read needs no buffer.
  DenseTensor input(const Op& op, size_t i) {
    const ValueId id = op.inputs[i].value;
    if (id == 0) return {};
    place_of(id).root->last = op_;
    return place_of(id).tensor;
  }

  bool here(const Type& type) const {
    return type.spec == nullptr || type.spec->mesh()->coordinate(executor_.rank_->id()).has_value();
  }
  Meta local_meta(const Type& type) const {
    return type.spec == nullptr
               ? type.meta
               : shard_meta(type.meta, *type.spec, *type.spec->mesh()->coordinate(executor_.rank_->id()));
  }

  void add_step(std::unique_ptr<BoundStep> step) { executor_.steps_.push_back({.step = std::move(step), .op = op_}); }

  void bind(const Op& op) {
    OpState& state = *executor_.states_.emplace_back(std::make_unique<OpState>());
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] == 0 || !op.writes[o]) continue;
      Root* const root = place_of(program_.value(op.outputs[o]).source).root;
      if (root->kind != Root::Kind::entry) continue;
      root->writer = op.name().data();
      ++root->writes;
      state.written.push_back(root);
    }
    switch (op.kind) {
      case Kind::call: return bind_call(op, state);
      case Kind::copy: return bind_copy(op, state);
      case Kind::alias: return bind_reinterpretation(op);
      default: return bind_conversion(op);
    }
  }

  void bind_copy(const Op& op, OpState& state) {
    const DenseTensor to = input(op, 0), from = input(op, 1);
    state.on_mesh = type_of(op.outputs[0]).spec != nullptr;
    if (here(type_of(op.inputs[0].value))) {
      Binder binder(executor_.meter_);
      binder.copy(to, from);
      take(binder, state);
    }
    set_output(op.outputs[0], to);
  }

  void take(Binder& binder, OpState& state) {
    for (DenseTensor* tensor : binder.tensors) {
      hold(*tensor);
      if (tensor->defined() && tensor->storage()->state() == Storage::State::unallocated)
        state.uses.push_back(&root_of(*tensor));
    }
    for (std::unique_ptr<BoundStep>& step : binder.steps) {
      add_step(std::move(step));
      executor_.steps_.back().computes = state.reducer == nullptr;
    }
  }

  void bind_conversion(const Op& op) {
    auto step = std::make_unique<ConversionStep>(input(op, 0),
                                                 converter(op, type_of(op.inputs[0].value), type_of(op.outputs[0])),
                                                 conversion_result(op.outputs[0]));
    hold(step->from());
    add_step(std::move(step));
  }

  /// Adds the result of a conversion. The returned function sets its bytes.
  ConversionStep::SetResult conversion_result(ValueId id) {
    const Type& type = type_of(id);
    Root& root = new_root(Root::Kind::made, here(type) ? stand_in(type.device, 0) : Storage::absent());
    set_output(id, DenseTensor(root.stand_in, here(type) ? local_meta(type) : absent_value(type.meta).meta()));
    root.bytes = here(type) ? place_of(id).tensor.meta().bytes() : 0;
    return [this_ = &executor_, &root](const DenseTensor& result) {
      this_->set_root(root, result.storage(), result.offset());
    };
  }

  /// The number of reshards, starting with this op, that run as one step.
  size_t combined_reshards() const {
    size_t count = 1;
    while (op_ + count < program_.ops.size() && program_.ops[op_ + count].kind == Kind::reshard &&
           program_.ops[op_ + count].joins)
      ++count;
    return count;
  }

  /// They run at the position of the last one.
  void bind_combined(size_t count) {
    const size_t first = op_;
    op_ += count - 1;
    std::vector<CombinedReshardsStep::Part> parts;
    for (size_t i = first; i <= op_; ++i) {
      const Op& op = program_.ops[i];
      executor_.states_.push_back(std::make_unique<OpState>());
      parts.push_back({plan_of(op), input(op, 0), conversion_result(op.outputs[0])});
    }
    const std::string& cause = program_.ops[first].cause;
    auto step = std::make_unique<CombinedReshardsStep>(
        *executor_.rank_, std::move(parts), cause.empty() ? to_string(Kind::reshard) : std::string_view(cause));
    for (CombinedReshardsStep::Part& part : step->parts()) hold(part.from);
    add_step(std::move(step));
  }

  std::shared_ptr<const ReshardPlan> plan_of(const Op& op) const {
    const Type& from = type_of(op.inputs[0].value);
    return plan_reshard(from.meta, from.spec, op.layout, 0, {"reshard", "tensor"}, executor_.rank_->policies.sums);
  }

  ConversionStep::Convert converter(const Op& op, const Type& from, const Type& to) {
    Rank* const rank = executor_.rank_;
    const std::string_view name = to_string(op.kind);
    if (op.kind == Kind::clone) {
      return [device = to.device](const DenseTensor& shard) {
        if (shard.storage()->state() == Storage::State::absent) return DenseTensor(Storage::absent(), shard.meta());
        DenseTensor copy = DenseTensor::allocate(device, shard.meta(), shard.storage()->meter());
        copy_into(copy, shard);
        return copy;
      };
    }
    if (op.kind == Kind::distribute) {
      return [spec = to.spec, source = Source{op.source_rank}](const DenseTensor& value) {
        return dist::distribute(Tensor(value), spec, source).get().value;
      };
    }
    if (op.kind == Kind::full_tensor) {
      return [rank, meta = from.meta, spec = from.spec](const DenseTensor& shard) {
        return dist::full_tensor(make_dist(*rank, meta, spec, shard)).get().value;
      };
    }
    const std::shared_ptr<const ReshardPlan> plan =
        op.kind == Kind::relayout ? plan_relayout(from.meta, from.spec, to.meta.dims, to.spec, rank->policies.sums)
                                  : plan_of(op);
    return [rank, plan, name, &op](const DenseTensor& shard) {
      const CommCause cause = {op.cause.empty() ? name : std::string_view(op.cause), "tensor"};
      observe_move(*rank, cause.op, cause.argument, *plan);
      return execute_reshard(*rank, *plan, shard, cause);
    };
  }

  void bind_call(const Op& op, OpState& state) {
    std::vector<const Type*> types;
    for (const Operand& operand : op.inputs) types.push_back(operand.value == 0 ? nullptr : &type_of(operand.value));
    const ProcessMesh* const mesh = mesh_of(op, types);
    state.on_mesh = mesh != nullptr;
    if (op.entry->op->random) executor_.random_ops_.push_back(op_);
    if (mesh != nullptr && !mesh->coordinate(executor_.rank_->id())) return bind_absent(op);
    if (mesh != nullptr && only_reinterprets(op)) return bind_reinterpretation(op);
    Binder binder(executor_.meter_);
    binder.key = &state.key;
    OpContext ctx{.op = op.name().data(), .launcher = &binder};
    std::vector<Attr> attrs = op.attrs;
    OutputMetas outputs = infer_metas(op, types);
    if (mesh != nullptr) {
      make_local(op, state, mesh, types, outputs);
      outputs.flat = state.plan.kernel_metas;
      ctx.local = &state.local;
      const int shape = op.entry->op->local_shape;
      if (shape >= 0)
        attrs[static_cast<size_t>(shape)] = IntArray(
            state.plan.output_shards[op.output_slots[static_cast<size_t>(op.entry->op->local_shape_output)].first]
                .dims);
    }
    std::vector<DenseTensor> tensors;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      const bool shape_only = (op.entry->op->no_need_buffer >> slot & 1u) != 0;
      for (size_t i = op.slots[slot].first; i < op.slots[slot].first + op.slots[slot].count; ++i) {
        if (!shape_only || types[i] == nullptr) tensors.push_back(input(op, i));
        else
          tensors.emplace_back(Storage::shape_only(types[i]->device),
                               mesh == nullptr ? types[i]->meta : state.plan.input_shards[i]);
      }
    }
    EntryCall call{ctx, outputs, tensors, op.slots, attrs, {}};
    std::optional<call::Float32Call> converted;
    if (state.plan.in_float32) {
      for (Attr& attr : attrs) widen_dtype(op, attr);
      converted.emplace(ctx, state.plan, tensors);
    }
    (op.inplace ? op.entry->inplace : op.entry->functional)(call);
    std::vector<DenseTensor> results = outputs_of(op, call);
    for (size_t o = 0; o < results.size() && converted; ++o) results[o] = converted->output(o, results[o]);
    take(binder, state);
    for (size_t o = 0; o < results.size(); ++o) set_output(op.outputs[o], std::move(results[o]));
    if (op.layout != nullptr) fill_identity_of(op, state);
  }

  /// Like call::DistCall::local_dtype.
  static void widen_dtype(const Op& op, Attr& attr) {
    if (op.inputs.empty()) return;
    if (auto* const dtype = std::get_if<DType>(&attr)) *dtype = compute_dtype(*dtype);
    auto* const optional = std::get_if<std::optional<DType>>(&attr);
    if (optional != nullptr && *optional) *optional = compute_dtype(**optional);
  }

  /// The flat outputs. An output that is an argument written in place is the new value of that
  /// argument. All other outputs are the results that the call returned, in their order.
  static std::vector<DenseTensor> outputs_of(const Op& op, EntryCall& call) {
    std::vector<DenseTensor> outputs;
    auto next = call.results.begin();
    for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
      const AliasDef* target = nullptr;
      for (const AliasDef& alias : op.entry->op->aliases) {
        if (op.inplace && alias.kind == AliasDef::Kind::inplace && alias.output == static_cast<int>(slot))
          target = &alias;
      }
      for (size_t i = 0; i < op.output_slots[slot].count; ++i) {
        outputs.push_back(target != nullptr ? call.tensors[op.slots[static_cast<size_t>(target->input)].first + i]
                                            : (*next)[i]);
      }
      if (target == nullptr) ++next;
    }
    return outputs;
  }

  void make_local(const Op& op, OpState& state, const ProcessMesh* mesh, std::span<const Type* const> types,
                  const OutputMetas& outputs) {
    call::CallPlan& plan = state.plan = place(op, types, outputs.flat, outputs.slots);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] != 0) plan.outputs[o].spec = type_of(op.outputs[o]).spec;
    }
    bind_plan(plan, mesh->coordinate(executor_.rank_->id()));
    if (!plan.reduce_axes.empty())
      state.reducer = std::make_unique<call::MeshReducer>(*executor_.rank_, plan, op.name());
    state.local.reducer = state.reducer.get();
    state.local.inputs = plan.input_boxes;
    state.local.outputs = plan.output_boxes;
    for (size_t o = 0; o < op.outputs.size() && op.inplace; ++o) {
      const bool replaced = op.outputs[o] != 0 && program_.value(op.outputs[o]).source == 0;
      const bool target =
          std::any_of(op.entry->op->aliases.begin(), op.entry->op->aliases.end(), [&](const AliasDef& alias) {
            const SlotRange& slot = op.output_slots[static_cast<size_t>(alias.output)];
            return alias.kind == AliasDef::Kind::inplace && o >= slot.first && o < slot.first + slot.count;
          });
      state.local.replace_targets = state.local.replace_targets || (replaced && target);
    }
  }

  static bool only_reinterprets(const Op& op) {
    const OpDef& def = *op.entry->op;
    return def.outputs.size() == 1 && std::any_of(def.aliases.begin(), def.aliases.end(), [](const AliasDef& alias) {
             return alias.kind == AliasDef::Kind::view && alias.input == 0;
           });
  }

  void bind_reinterpretation(const Op& op) {
    if (!here(type_of(op.outputs[0]))) return bind_absent(op);
    const Type& to = type_of(op.outputs[0]);
    set_output(op.outputs[0], input(op, 0).reinterpret(local_meta(to)));
  }

  /// On a rank outside the mesh values are storage-less, and the values of a tree share one
  /// storage.
  void bind_absent(const Op& op) {
    for (const ValueId id : op.outputs) {
      if (id == 0) continue;
      const Value& value = program_.value(id);
      const Meta meta = absent_value(value.type.meta).meta();
      set_output(id, value.source == 0 ? DenseTensor(Storage::absent(), meta)
                                       : DenseTensor(place_of(value.source).tensor.storage(), meta));
    }
  }

  /// For a value created in a pending layout: one rank has the value, and the others contribute the
  /// identity of the reduction.
  void fill_identity_of(const Op& op, const OpState& state) {
    for (const ValueId id : op.outputs) {
      if (id == 0 || !state.plan.identity) continue;
      auto step = std::make_unique<IdentityStep>(place_of(id).tensor, *state.plan.identity);
      hold(step->shard());
      add_step(std::move(step));
    }
  }

  /// What the caller gets must not be in the block, which the next run overwrites.
  void keep(ValueId id) {
    if (id == 0) return;
    Root& root = *place_of(id).root;
    root.last = program_.ops.size();
    if (root.kind == Root::Kind::planned) root.kind = Root::Kind::output;
  }

  Executor& executor_;
  const Program& program_;
  const Arguments& arguments_;
  size_t op_ = 0;
  std::unordered_map<const Storage*, Root*> by_storage_;
};

Executor::Executor(const Program& program, const Arguments& arguments, ExecutorOptions options)
    : program_(program), options_(options), rank_(this_thread.rank), read_(read_trees(program)) {
  Build(*this, arguments).run();
  schedule();
}

}  // namespace shard::program

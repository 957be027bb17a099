#include "program/executor.h"

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "call/binder.h"
#include "call/mesh_reducer.h"
#include "comm/reduce.h"
#include "core/error.h"
#include "dist/dist_tensor.h"
#include "program/fusion.h"
#include "program/infer.h"
#include "program/pointwise.h"
#include "reshard/execute.h"
#include "reshard/unrecorded.h"

namespace shard::program {

using call::Binder;
using call::BoundStep;
using call::BoundTensor;

/// A buffer. Until the program runs, a storage without bytes stands for it.
struct Executor::Root {
  enum class Kind : uint8_t {
    entry,   // of an input or parameter: whatever the run is given
    planned,  // at a place of the block
    output,  // new in each run, unless nobody else has it any more
    made     // by the step that makes it: a move makes its own result
  };
  Kind kind = Kind::planned;
  Ref<Storage> stand_in;
  size_t bytes = 0;
  size_t first = 0, last = 0;        // op
  std::vector<DenseTensor*> tensors;  // of steps, that are in it
  std::vector<size_t> offsets;        // of those, from the start
  Ref<Storage> now;
  size_t base = 0;
  uint64_t writes = 0;               // in a run, of an entry
  const char* writer = nullptr;
};

struct Executor::Place {
  DenseTensor tensor;  // on the stand-in; undefined for an absent value
  Root* root = nullptr;
};

struct Executor::Step {
  std::unique_ptr<BoundStep> step;
  size_t op;
  size_t last = 0;                                // of a fused loop: the last op; else as op
  std::vector<std::unique_ptr<BoundStep>> parts = {};  // of a fused loop
};

/// What the steps of an op refer to.
struct Executor::OpState {
  LocalCall local;
  std::vector<Box> input_boxes, output_boxes;
  std::vector<Dims> input_dims, output_dims;
  std::unique_ptr<AxisReducer> reducer;
  RandomKey key;
  bool on_mesh = false;
  std::vector<Root*> written;  // entries
};

namespace {

/// The value that a handle had before ops wrote it in place.
ValueId handle_of(const Program& program, ValueId id) {
  while (program.value(id).op >= 0 && program.value(id).source != 0) {
    const Op& op = program.ops[static_cast<size_t>(program.value(id).op)];
    const bool written = (op.inplace || op.kind == Kind::copy) && program.value(program.value(id).source).type == program.value(id).type;
    if (!written) break;
    id = program.value(id).source;
  }
  return id;
}

/// A move makes a buffer of its own: the root of its result is set when it runs.
class MoveStep final : public BoundStep {
 public:
  using Move = std::function<DenseTensor(const DenseTensor& from)>;
  using Give = std::function<void(const DenseTensor& result)>;
  MoveStep(DenseTensor from, Move move, Give give) : from_(std::move(from)), move_(std::move(move)), give_(std::move(give)) {}
  DenseTensor& from() { return from_; }
  void run() override { give_(move_(from_)); }

 private:
  DenseTensor from_;
  Move move_;
  Give give_;
};

/// Several moves, whose steps share collectives.
class MovesStep final : public BoundStep {
 public:
  struct Part {
    std::shared_ptr<const ReshardPlan> plan;
    DenseTensor from;
    MoveStep::Give give;
  };
  MovesStep(Rank& rank, std::vector<Part> parts, std::string_view cause) : rank_(rank), parts_(std::move(parts)), cause_(cause) {
    for (const Part& part : parts_) plans_.push_back(part.plan.get());
  }
  std::vector<Part>& parts() { return parts_; }
  void run() override {
    std::vector<DenseTensor> from;
    for (const Part& part : parts_) from.push_back(part.from);
    const std::vector<DenseTensor> made = execute_reshards(rank_, plans_, from, {cause_, "tensors"});
    for (size_t i = 0; i < parts_.size(); ++i) parts_[i].give(made[i]);
  }

 private:
  Rank& rank_;
  std::vector<Part> parts_;
  std::vector<const ReshardPlan*> plans_;
  std::string_view cause_;
};

class ReleaseStep final : public BoundStep {
 public:
  explicit ReleaseStep(std::function<void()> release) : release_(std::move(release)) {}
  void run() override { release_(); }

 private:
  std::function<void()> release_;
};

class IdentityStep final : public BoundStep {
 public:
  IdentityStep(DenseTensor piece, ReduceType type) : piece_(std::move(piece)), type_(type) {}
  DenseTensor& piece() { return piece_; }
  void run() override { fill_identity(piece_.raw(), piece_.numel(), piece_.dtype(), type_); }

 private:
  DenseTensor piece_;
  ReduceType type_;
};

}  // namespace

/// Prepares ops one after the other.
class Executor::Build {
 public:
  Build(Executor& executor, const Arguments& arguments) : executor_(executor), program_(executor.program_), arguments_(arguments) {}

  void run() {
    executor_.places_.resize(program_.value_count());
    enter(program_.inputs, arguments_.inputs);
    enter(program_.parameters, arguments_.parameters);
    for (op_ = 0; op_ < program_.ops.size(); ++op_) {
      const size_t together = moves_together();
      if (together > 1) bind_moves(together);
      else bind(program_.ops[op_]);
    }
    for (const Named& output : program_.outputs) keep(output.value);
    for (const GradientEffect& effect : program_.gradients) keep(effect.gradient);
    release_moved();
    if (executor_.options_.fuse_block > 0) fuse();
    place();
  }

 private:
  Place& place_of(ValueId id) { return executor_.places_[id]; }
  const Type& type_of(ValueId id) const { return program_.value(id).type; }

  void enter(const std::vector<Named>& names, const std::vector<Tensor>& tensors) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].value == 0 || !tensors[i].defined()) continue;  // absent, or read for its shape alone
      const Value& value = program_.value(names[i].value);
      const DenseTensor& real = tensors[i].get().value;
      if (value.source == 0) {
        Root& root = new_root(Root::Kind::entry, real.storage()->state() == Storage::State::absent ? Storage::absent() : stand_in(real.device(), 0));
        place_of(names[i].value) = {DenseTensor(root.stand_in, real.meta(), real.offset()), &root};
      } else {
        Root& root = *place_of(value.root).root;
        place_of(names[i].value) = {DenseTensor(root.stand_in, real.meta(), real.offset()), &root};
      }
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

  /// The root that a tensor of a step is in; a storage that is not known yet is a buffer of this op.
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
    if (!tensor.defined()) fail(ErrorCode::internal, "[{}] gives no tensor for %{} of its program", program_.ops[op_].name(), id);
    Root& root = root_of(tensor);
    place_of(id) = {std::move(tensor), &root};
  }

  /// As the op reads it. One of which only the shape is read needs no buffer.
  DenseTensor input(const Op& op, size_t i) {
    const ValueId id = op.inputs[i].value;
    if (id == 0) return {};
    place_of(id).root->last = op_;
    return place_of(id).tensor;
  }

  bool here(const Type& type) const { return type.spec == nullptr || type.spec->mesh()->coordinate(executor_.rank_->id()).has_value(); }
  Dims local_dims(const Type& type) const {
    if (type.spec == nullptr) return type.meta.dims;
    return local_piece(type.spec->layout(), type.meta.dims, *type.spec->mesh()->coordinate(executor_.rank_->id())).dims;
  }

  void add_step(std::unique_ptr<BoundStep> step) { executor_.steps_.push_back({std::move(step), op_}); }

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
      case Kind::copy: return bind_copy(op);
      case Kind::alias: return bind_reinterpretation(op);
      default: return bind_move(op);
    }
  }

  void bind_copy(const Op& op) {
    const DenseTensor to = input(op, 0), from = input(op, 1);
    if (here(type_of(op.inputs[0].value))) {
      Binder binder;
      binder.copy(to, from);
      take(binder);
    }
    set_output(op.outputs[0], to);
  }

  void take(Binder& binder) {
    for (DenseTensor* tensor : binder.tensors) hold(*tensor);
    for (std::unique_ptr<BoundStep>& step : binder.steps) add_step(std::move(step));
  }

  void bind_move(const Op& op) {
    auto step = std::make_unique<MoveStep>(input(op, 0), mover(op, type_of(op.inputs[0].value), type_of(op.outputs[0])), make_moved(op.outputs[0]));
    hold(step->from());
    add_step(std::move(step));
  }

  /// The result of a move, which gets its bytes from what this returns.
  MoveStep::Give make_moved(ValueId id) {
    const Type& type = type_of(id);
    Root& root = new_root(Root::Kind::made, here(type) ? stand_in(type.device, 0) : Storage::absent());
    set_output(id, DenseTensor(root.stand_in, here(type) ? Meta{local_dims(type), type.meta.dtype} : absent_value(type.meta).meta()));
    return [this_ = &executor_, &root](const DenseTensor& made) { this_->set_root(root, made.storage(), made.offset()); };
  }

  /// How many ops from this one on are moves that run together.
  size_t moves_together() const {
    size_t count = 1;
    while (op_ + count < program_.ops.size() && program_.ops[op_ + count].joins) ++count;
    return count;
  }

  /// They run where the last of them stands.
  void bind_moves(size_t count) {
    const size_t first = op_;
    op_ += count - 1;
    std::vector<MovesStep::Part> parts;
    for (size_t i = first; i <= op_; ++i) {
      const Op& op = program_.ops[i];
      executor_.states_.push_back(std::make_unique<OpState>());
      parts.push_back({plan_of(op), input(op, 0), make_moved(op.outputs[0])});
    }
    const std::string& cause = program_.ops[first].cause;
    auto step = std::make_unique<MovesStep>(*executor_.rank_, std::move(parts), cause.empty() ? to_string(Kind::reshard) : std::string_view(cause));
    for (MovesStep::Part& part : step->parts()) hold(part.from);
    add_step(std::move(step));
  }

  std::shared_ptr<const ReshardPlan> plan_of(const Op& op) const {
    const Type& from = type_of(op.inputs[0].value);
    return plan_reshard(from.meta, from.spec, op.layout);
  }

  MoveStep::Move mover(const Op& op, const Type& from, const Type& to) {
    Rank* const rank = executor_.rank_;
    const std::string_view name = to_string(op.kind);
    if (op.kind == Kind::clone) {
      return [device = to.device](const DenseTensor& piece) {
        if (piece.storage()->state() == Storage::State::absent) return DenseTensor(Storage::absent(), piece.meta());
        DenseTensor copy = DenseTensor::allocate(device, piece.meta(), piece.storage()->meter());
        copy_into(copy, piece);
        return copy;
      };
    }
    if (op.kind == Kind::distribute) {
      return [spec = to.spec, source = Source{op.source_rank}](const DenseTensor& value) { return unrecorded::distribute(Tensor(value), spec, source).get().value; };
    }
    if (op.kind == Kind::full) {
      return [rank, meta = from.meta, spec = from.spec](const DenseTensor& piece) { return unrecorded::full(make_dist(*rank, meta, spec, piece)).get().value; };
    }
    const std::shared_ptr<const ReshardPlan> plan =
        op.kind == Kind::relayout ? plan_relayout(from.meta, from.spec, to.meta.dims, to.spec) : plan_of(op);
    return [rank, plan, name, &op](const DenseTensor& piece) { return execute_reshard(*rank, *plan, piece, {op.cause.empty() ? name : std::string_view(op.cause), "tensor"}); };
  }

  void bind_call(const Op& op, OpState& state) {
    std::vector<const Type*> types;
    for (const Operand& operand : op.inputs) types.push_back(operand.value == 0 ? nullptr : &type_of(operand.value));
    const ProcessMesh* const mesh = mesh_of(op, types);
    state.on_mesh = mesh != nullptr;
    if (op.entry->op->random) executor_.random_ops_.push_back(op_);
    if (mesh != nullptr && !mesh->coordinate(executor_.rank_->id())) return bind_absent(op);
    if (mesh != nullptr && reinterprets(op)) return bind_reinterpretation(op);
    Binder binder;
    binder.key = &state.key;
    OpContext ctx{.op = op.name().data(), .dry = &executor_.meter_, .binder = &binder};
    std::vector<Attr> attrs = op.attrs;
    if (mesh != nullptr) {
      make_local(op, state, mesh, types);
      ctx.local = &state.local;
      const int shape = op.entry->op->local_shape;
      if (shape >= 0) attrs[static_cast<size_t>(shape)] = IntArray(state.output_dims[op.output_slots[static_cast<size_t>(op.entry->op->local_shape_output)].first]);
    }
    std::vector<DenseTensor> tensors;
    for (size_t slot = 0; slot < op.slots.size(); ++slot) {
      const bool shape_only = (op.entry->op->no_need_buffer >> slot & 1u) != 0;
      for (size_t i = op.slots[slot].first; i < op.slots[slot].first + op.slots[slot].count; ++i) {
        if (!shape_only || types[i] == nullptr) tensors.push_back(input(op, i));
        else tensors.emplace_back(Storage::shape_only(types[i]->device), Meta{mesh == nullptr ? types[i]->meta.dims : state.input_dims[i], types[i]->meta.dtype});
      }
    }
    EntryCall call{ctx, tensors, op.slots, attrs, {}};
    (op.inplace ? op.entry->inplace : op.entry->functional)(call);
    take(binder);
    set_outputs(op, call);
    if (op.layout != nullptr) fill_identity_of(op);
  }

  /// Outputs that are arguments written in place are what those have become; the others are what the call has given, in their order.
  void set_outputs(const Op& op, EntryCall& call) {
    auto next = call.results.begin();
    for (size_t slot = 0; slot < op.output_slots.size(); ++slot) {
      const SlotRange& range = op.output_slots[slot];
      const AliasDef* target = nullptr;
      for (const AliasDef& alias : op.entry->op->aliases) {
        if (op.inplace && alias.kind == AliasDef::Kind::inplace && alias.output == static_cast<int>(slot)) target = &alias;
      }
      for (size_t i = 0; i < range.count; ++i) {
        const size_t flat = range.first + i;
        set_output(op.outputs[flat], target != nullptr ? call.tensors[op.slots[static_cast<size_t>(target->input)].first + i] : (*next)[i]);
      }
      if (target == nullptr) ++next;
    }
  }

  void make_local(const Op& op, OpState& state, const ProcessMesh* mesh, std::span<const Type* const> types) {
    const Coordinate at = *mesh->coordinate(executor_.rank_->id());
    const auto box = [&](const Layout* layout, const Meta& meta, std::vector<Box>& boxes, std::vector<Dims>& dims) {
      const Piece piece = layout == nullptr ? Piece() : local_piece(*layout, meta.dims, at);
      boxes.push_back(layout == nullptr ? Box() : Box{meta.dims, piece.begin});
      dims.push_back(piece.dims);
    };
    std::vector<Meta> metas;
    for (const ValueId id : op.outputs) {
      const Type* const type = id == 0 ? nullptr : &type_of(id);
      metas.push_back(type == nullptr ? Meta() : type->meta);
      box(type == nullptr ? nullptr : &type->spec->layout(), metas.back(), state.output_boxes, state.output_dims);
    }
    if (op.layout != nullptr) {
      state.local.output_dims = state.output_dims;
    } else {
      const spmd::RuleResult rule = infer_layouts(op, types, metas, op.output_slots);
      for (size_t i = 0; i < types.size(); ++i) box(types[i] == nullptr ? nullptr : &rule.inputs[i], types[i] == nullptr ? Meta() : types[i]->meta, state.input_boxes, state.input_dims);
      if (!rule.reduce_axes.empty()) state.reducer = std::make_unique<call::MeshReducer>(*executor_.rank_, mesh, rule.reduce_axes, op.name());
      state.local.reducer = state.reducer.get();
    }
    state.local.inputs = state.input_boxes;
    state.local.outputs = state.output_boxes;
    for (size_t o = 0; o < op.outputs.size() && op.inplace; ++o) {
      const bool replaced = op.outputs[o] != 0 && program_.value(op.outputs[o]).source == 0;
      const bool target = std::any_of(op.entry->op->aliases.begin(), op.entry->op->aliases.end(), [&](const AliasDef& alias) {
        const SlotRange& slot = op.output_slots[static_cast<size_t>(alias.output)];
        return alias.kind == AliasDef::Kind::inplace && o >= slot.first && o < slot.first + slot.count;
      });
      state.local.replace_targets = state.local.replace_targets || (replaced && target);
    }
  }

  static bool reinterprets(const Op& op) {
    const OpDef& def = *op.entry->op;
    return def.outputs.size() == 1 && std::any_of(def.aliases.begin(), def.aliases.end(), [](const AliasDef& alias) { return alias.kind == AliasDef::Kind::view && alias.input == 0; });
  }

  void bind_reinterpretation(const Op& op) {
    if (!here(type_of(op.outputs[0]))) return bind_absent(op);
    const Type& to = type_of(op.outputs[0]);
    set_output(op.outputs[0], input(op, 0).reinterpret({local_dims(to), to.meta.dtype}));
  }

  /// On a rank outside the mesh values have no bytes, and those of a tree share that.
  void bind_absent(const Op& op) {
    for (const ValueId id : op.outputs) {
      if (id == 0) continue;
      const Value& value = program_.value(id);
      const Meta meta = absent_value(value.type.meta).meta();
      set_output(id, value.source == 0 ? DenseTensor(Storage::absent(), meta) : DenseTensor(place_of(value.source).tensor.storage(), meta));
    }
  }

  /// Made in a pending layout: one rank has the value, the others what leaves it unchanged.
  void fill_identity_of(const Op& op) {
    const ProcessMesh& mesh = *op.layout->mesh();
    const Coordinate at = *mesh.coordinate(executor_.rank_->id());
    std::optional<ReduceType> identity;
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      const std::optional<ReduceType> type = op.layout->partial(axis);
      if (type && *type != ReduceType::avg && at[static_cast<size_t>(axis)] != 0) identity = type;
    }
    for (const ValueId id : op.outputs) {
      if (id == 0 || !identity) continue;
      auto step = std::make_unique<IdentityStep>(place_of(id).tensor, *identity);
      hold(step->piece());
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

  /// Results of moves are freed after the last op that uses them.
  void release_moved() {
    std::vector<std::vector<Root*>> ending(program_.ops.size() + 1);
    for (const std::unique_ptr<Root>& root : executor_.roots_) {
      if (root->kind == Root::Kind::made) ending[root->last].push_back(root.get());
    }
    std::vector<Step> steps;
    for (size_t s = 0; s < executor_.steps_.size(); ++s) {
      const size_t op = executor_.steps_[s].op;
      steps.push_back(std::move(executor_.steps_[s]));
      const size_t next = s + 1 < executor_.steps_.size() ? executor_.steps_[s + 1].op : program_.ops.size();
      for (size_t ended = op; ended < next; ++ended) {
        for (Root* root : ending[ended]) {
          steps.push_back({std::make_unique<ReleaseStep>([this_ = &executor_, root] { this_->set_root(*root, root->stand_in, 0); }), ended});
        }
      }
    }
    executor_.steps_ = std::move(steps);
  }

  /// The tensors of a step that may be part of a loop; none where it may not.
  std::vector<FusedTensor> fusable(const Step& step) {
    const Op& op = program_.ops[step.op];
    if (op.kind != Kind::call || !is_pointwise(*op.entry->op)) return {};
    std::vector<FusedTensor> tensors;
    for (const BoundTensor& each : step.step->tensors()) tensors.push_back({each, &root_at(*each.tensor)});
    return tensors;
  }
  Root& root_at(const DenseTensor& tensor) { return *by_storage_.at(tensor.storage().get()); }

  /// Steps of ops that have one step each, and follow each other, become loops. Buffers that a loop uses are in use until it ends.
  void fuse() {
    std::vector<Step> steps;
    std::vector<Step> group;
    std::optional<FusedLoop> loop;
    const auto close = [&] {
      if (group.size() < 2) {
        for (Step& each : group) steps.push_back(std::move(each));
      } else {
        Step fused{loop->make(), group.front().op, group.back().op};
        for (Step& each : group) {
          for (const BoundTensor& tensor : each.step->tensors()) {
            Root& root = root_at(*tensor.tensor);
            root.first = std::min(root.first, fused.op);
            root.last = std::max(root.last, fused.last);
          }
          fused.parts.push_back(std::move(each.step));
        }
        steps.push_back(std::move(fused));
      }
      group.clear();
      loop.reset();
    };
    std::vector<int> steps_of(program_.ops.size(), 0);
    for (const Step& step : executor_.steps_) ++steps_of[step.op];
    for (Step& step : executor_.steps_) {
      const std::vector<FusedTensor> tensors = steps_of[step.op] == 1 ? fusable(step) : std::vector<FusedTensor>();
      if (loop && !loop->add(*step.step, tensors)) close();
      if (!loop) {
        loop.emplace(executor_.options_.fuse_block);
        if (!loop->add(*step.step, tensors)) loop.reset();
      }
      (loop ? group : steps).push_back(std::move(step));
    }
    close();
    executor_.steps_ = std::move(steps);
  }

  void place() {
    std::vector<Root*> planned;
    std::vector<Lifetime> lifetimes;
    for (const std::unique_ptr<Root>& root : executor_.roots_) {
      if (root->kind != Root::Kind::planned || root->stand_in->state() == Storage::State::absent) continue;
      planned.push_back(root.get());
      lifetimes.push_back({root->bytes, root->first, root->last});
    }
    // One block: programs use one device. Those that use several get one each, laid out alike.
    executor_.plan_ = plan_memory(lifetimes);
    std::vector<std::pair<Device, Ref<Storage>>> blocks;
    for (size_t i = 0; i < planned.size(); ++i) {
      const Device device = planned[i]->stand_in->device();
      auto block = std::find_if(blocks.begin(), blocks.end(), [&](const auto& each) { return each.first == device; });
      if (block == blocks.end()) {
        blocks.emplace_back(device, Storage::allocate(device, executor_.plan_.bytes));
        block = std::prev(blocks.end());
      }
      executor_.set_root(*planned[i], block->second, executor_.plan_.offsets[i]);
    }
    for (auto& [device, block] : blocks) executor_.blocks_.push_back(std::move(block));
  }

  Executor& executor_;
  const Program& program_;
  const Arguments& arguments_;
  size_t op_ = 0;
  std::unordered_map<const Storage*, Root*> by_storage_;
};

Executor::Executor(const Program& program, const Arguments& arguments, ExecutorOptions options) : program_(program), options_(options), rank_(this_thread.rank) {
  Build(*this, arguments).run();
}
Executor::~Executor() = default;

/// `base`: where the first byte of the root is in `storage`. Of an entry, offsets of tensors count from the start of its buffer as it was.
void Executor::set_root(Root& root, const Ref<Storage>& storage, size_t base) {
  root.now = storage;
  root.base = base;
  for (size_t i = 0; i < root.tensors.size(); ++i) *root.tensors[i] = DenseTensor(storage, root.tensors[i]->meta(), base + root.offsets[i]);
}

void Executor::enter(const std::vector<Named>& names, const std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].value == 0 || !tensors[i].defined() || program_.value(names[i].value).source != 0) continue;
    const DenseTensor& tensor = tensors[i].get().value;
    const Place& place = places_[names[i].value];
    Root& root = *place.root;
    if (root.writes != 0) tensor.storage()->check_write(root.writer);
    else tensor.storage()->check_read();
    const size_t base = tensor.offset() - place.tensor.offset();
    if (!(root.now == tensor.storage()) || root.base != base) set_root(root, tensor.storage(), base);
  }
}

namespace {

/// Whether a buffer that nobody else has is as a new one.
bool is_clean(const Storage& storage) {
  if (storage.version() != 0 || storage.detachment() != nullptr) return false;
  try {
    storage.check_write("run");
    return true;
  } catch (const Error&) {  // poisoned
    return false;
  }
}

}  // namespace

void Executor::make_outputs() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->kind != Root::Kind::output) continue;
    // Each held tensor and the root itself have a reference.
    if (root->now && root->now->use_count() == root->tensors.size() + 1 && is_clean(*root->now)) continue;
    const bool absent = root->stand_in->state() == Storage::State::absent;
    set_root(*root, absent ? Storage::absent() : Storage::allocate(root->stand_in->device(), root->bytes), 0);
  }
}

void Executor::draw_keys(const RandomStart& forward) {
  Generator& plain = call::thread_generator();
  start_ = {plain.state(), rank_ == nullptr ? RandomKey() : rank_->generator.state()};
  for (const size_t i : random_ops_) {
    OpState& state = *states_[i];
    const RandomKey& then = state.on_mesh ? forward.world : forward.plain;
    const RandomKey& now = state.on_mesh ? start_.world : start_.plain;
    const uint64_t before = state.on_mesh ? program_.world_before : program_.plain_before;
    const uint64_t draw = program_.ops[i].draw;
    state.key = draw < before ? RandomKey{then.seed, then.offset + draw} : RandomKey{now.seed, now.offset + draw - before};
    state.local.random = state.key;
  }
  if (program_.plain_draws != 0) plain.set_state({start_.plain.seed, start_.plain.offset + program_.plain_draws});
  if (program_.world_draws != 0) rank_->generator.set_state({start_.world.seed, start_.world.offset + program_.world_draws});
}

void Executor::count_writes() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->writes == 0) continue;
    root->now->set_version(root->now->version() + root->writes - 1);
    root->now->bump(root->writer);
  }
}

void Executor::poison(const Step& step) {
  // A loop has begun to write when a later op refuses its arguments.
  if (step.parts.empty() && call::failed_before_writing()) return;
  for (size_t op = step.op; op <= std::max(step.op, step.last); ++op) {
    for (Root* root : states_[op]->written) root->now->poison(std::current_exception(), program_.ops[op].name().data());
  }
}

/// Of a run that has failed: writes and draws of the ops after `op` have not been.
void Executor::take_back(size_t op) {
  for (size_t later = op + 1; later < states_.size(); ++later) {
    for (const Root* root : states_[later]->written) root->now->set_version(root->now->version() - 1);
  }
  for (const bool on_mesh : {false, true}) {
    const uint64_t before = on_mesh ? program_.world_before : program_.plain_before;
    uint64_t first = before + (on_mesh ? program_.world_draws : program_.plain_draws);
    for (const size_t random : random_ops_) {
      if (random > op && states_[random]->on_mesh == on_mesh) first = std::min(first, std::max(before, program_.ops[random].draw));
    }
    const RandomKey& start = on_mesh ? start_.world : start_.plain;
    if (on_mesh && rank_ != nullptr) rank_->generator.set_state({start.seed, start.offset + first - before});
    if (!on_mesh) call::thread_generator().set_state({start.seed, start.offset + first - before});
  }
}

/// Holds nobody else's tensors any more.
void Executor::let_go() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if ((root->kind == Root::Kind::entry && root->now) || (root->kind == Root::Kind::made && root->now)) set_root(*root, root->stand_in, 0);
  }
}

size_t Executor::fused_ops() const {
  size_t fused = 0;
  for (const Step& step : steps_) fused += step.parts.size();
  return fused;
}

std::vector<Tensor> Executor::run(const Arguments& arguments, const RandomStart& forward) {
  enter(program_.inputs, arguments.inputs);
  enter(program_.parameters, arguments.parameters);
  make_outputs();
  draw_keys(forward);
  count_writes();
  const Step* running = nullptr;
  try {
    for (const Step& step : steps_) {
      running = &step;
      step.step->run();
    }
  } catch (...) {
    poison(*running);
    take_back(std::max(running->op, running->last));
    if (!options_.keep_arguments) let_go();
    throw;
  }
  std::vector<Tensor> outputs;
  for (const Named& output : program_.outputs) outputs.push_back(tensor_of(output.value, arguments));
  if (!options_.keep_arguments) let_go();
  return outputs;
}

Tensor Executor::tensor_of(ValueId id, const Arguments& arguments) const {
  if (id == 0) return {};
  // An output that is an argument, however it was written in place, is that handle.
  const ValueId handle = handle_of(program_, id);
  for (size_t list = 0; list < 2; ++list) {
    const std::vector<Named>& names = list == 0 ? program_.inputs : program_.parameters;
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i].value == handle) return (list == 0 ? arguments.inputs : arguments.parameters)[i];
    }
  }
  const Place& place = places_[id];
  const Type& type = program_.value(id).type;
  DenseTensor tensor(place.root->now, place.tensor.meta(), place.root->base + place.tensor.offset());
  if (type.spec == nullptr) return Tensor(std::move(tensor));
  return make_dist(*rank_, type.meta, type.spec, std::move(tensor));
}

std::vector<Tensor> Executor::gradients(const Arguments& arguments) const {
  std::vector<Tensor> gradients;
  for (const GradientEffect& effect : program_.gradients) gradients.push_back(tensor_of(effect.gradient, arguments));
  return gradients;
}

MemoryReport Executor::memory() const {
  MemoryReport report{static_cast<int64_t>(plan_.bytes), static_cast<int64_t>(plan_.live), 0};
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->kind == Root::Kind::output) report.outputs += static_cast<int64_t>(root->bytes);
  }
  return report;
}

}  // namespace shard::program

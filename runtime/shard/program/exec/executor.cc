#include "shard/program/exec/executor.h"

#include <algorithm>

#include "shard/call/binder.h"
#include "shard/call/failed_call.h"
#include "shard/core/error.h"
#include "shard/core/tracer.h"
#include "shard/dist/dist_tensor.h"
#include "shard/dist/view_use.h"
#include "shard/program/exec/executor_parts.h"
#include "shard/program/ir/alias.h"

namespace shard::program {

Executor::~Executor() = default;

/// `base` is the offset of the first byte of the root in `storage`. For an entry, offsets of
/// tensors are relative to the start of the buffer that the executor was made with.
void Executor::set_root(Root& root, const Ref<Storage>& storage, size_t base) {
  root.now = storage;
  root.base = base;
  for (size_t i = 0; i < root.tensors.size(); ++i)
    *root.tensors[i] = DenseTensor(storage, root.tensors[i]->meta(), base + root.offsets[i]);
}

namespace {

[[noreturn]] void fail_no_data(const std::string& name, const Tensor& tensor) {
  const std::string text = fmt::format("'{}' ({})", name, tensor.get().describe());
  if (tensor.get().value.symbol() != 0) fail_escaped("captured", text);
  fail(ErrorCode::no_data,
       "[captured] {} belongs to a dry world, which has no data; call the captured function inside of that world's run",
       text);
}

}  // namespace

void Executor::enter(const std::vector<Named>& names, const std::vector<Tensor>& tensors) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].value == 0 || !tensors[i].defined() || program_.value(names[i].value).source != 0) continue;
    const DenseTensor& tensor = tensors[i].get().value;
    if (!tensor.has_data()) fail_no_data(names[i].name, tensors[i]);
    const Place& place = places_[names[i].value];
    Root& root = *place.root;
    if (root.writes != 0) check_write(*tensor.storage(), root.writer, view_policy());
    else if (read_[program_.value(names[i].value).root]) check_read(*tensor.storage(), view_policy());
    const size_t base = tensor.offset() - place.tensor.offset();
    if (!(root.now == tensor.storage()) || root.base != base) set_root(root, tensor.storage(), base);
  }
}

namespace {

/// True if a buffer that nobody else holds can be reused like a new one.
bool is_clean(const Storage& storage) {
  return storage.version() == 0 && !storage.needs_checks() && !storage.is_source();
}

}  // namespace

void Executor::make_outputs() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->kind != Root::Kind::output) continue;
    // Each held tensor and the root itself hold one reference.
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
    state.key =
        draw < before ? RandomKey{then.seed, then.offset + draw} : RandomKey{now.seed, now.offset + draw - before};
    state.local.random = state.key;
  }
  if (program_.plain_draws != 0) plain.set_state({start_.plain.seed, start_.plain.offset + program_.plain_draws});
  if (program_.world_draws != 0)
    rank_->generator.set_state({start_.world.seed, start_.world.offset + program_.world_draws});
}

void Executor::count_writes() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->writes == 0) continue;
    root->now->set_version(root->now->version() + root->writes - 1);
    root->now->bump(root->writer);
  }
}

/// Poisons what failed when `step` threw. `refused`: by a kernel that had written nothing. Returns
/// the last op that ran.
size_t Executor::poison(const Step& step, bool refused) {
  if (step.parallel != nullptr) {
    for (const ParallelStep::Line& line : step.parallel->lines()) {
      if (line.error) poison(line.ops.first, line.ops.second);
    }
    return step.last;
  }
  const auto [first, last] =
      step.graph != nullptr ? step.graph->failed() : std::pair(step.op, std::max(step.op, step.last));
  // If several ops run as one, others may have begun to write when one refuses its arguments.
  if (first != last || !refused) poison(first, last);
  return last;
}

void Executor::poison(size_t first, size_t last) {
  for (size_t op = first; op <= last; ++op) {
    for (Root* root : states_[op]->written) root->now->poison(std::current_exception(), program_.ops[op].name().data());
  }
}

/// Undoes the counting of writes and random draws of the ops after `op`, which did not happen
/// because the run failed.
void Executor::take_back(size_t op) {
  for (size_t later = op + 1; later < states_.size(); ++later) {
    for (const Root* root : states_[later]->written) root->now->set_version(root->now->version() - 1);
  }
  for (const bool on_mesh : {false, true}) {
    const uint64_t before = on_mesh ? program_.world_before : program_.plain_before;
    uint64_t first = before + (on_mesh ? program_.world_draws : program_.plain_draws);
    uint64_t done = before;  // a repeated op draws what it drew the first time
    for (const size_t random : random_ops_) {
      if (states_[random]->on_mesh != on_mesh) continue;
      const uint64_t draw = program_.ops[random].draw;
      if (random <= op) done = std::max(done, draw + 1);
      else first = std::min(first, std::max(before, draw));
    }
    first = std::max(first, done);
    const RandomKey& start = on_mesh ? start_.world : start_.plain;
    if (on_mesh && rank_ != nullptr) rank_->generator.set_state({start.seed, start.offset + first - before});
    if (!on_mesh) call::thread_generator().set_state({start.seed, start.offset + first - before});
  }
}

/// Releases all tensors of others.
void Executor::let_go() {
  for (const std::unique_ptr<Root>& root : roots_) {
    if ((root->kind == Root::Kind::entry && root->now) || (root->kind == Root::Kind::made && root->now))
      set_root(*root, root->stand_in, 0);
  }
}

size_t Executor::fused_ops() const {
  size_t fused = device_fused_;
  for (const Step& step : steps_) {
    fused += step.parts.size();
    for (const Step& member : step.members) fused += member.parts.size();
  }
  return fused;
}

size_t Executor::parallel_steps() const {
  size_t count = 0;
  for (const Step& step : steps_) count += step.members.size();
  return count;
}

GraphReport Executor::graphs() const {
  GraphReport report;
  for (const Step& step : steps_) {
    if (step.graph == nullptr) continue;
    ++report.sequences;
    report.steps += step.graph->size();
    report.recordings += step.graph->recordings();
    report.launches += step.graph->launches();
  }
  return report;
}

/// What ops wrote has no valid value if they fail on another rank.
void Executor::mark_writes_maybe_poisoned(uint64_t calls_before) {
  for (size_t op = 0; op < states_.size(); ++op) {
    const OpState& state = *states_[op];
    if (!state.on_mesh) continue;
    for (Root* root : state.written) root->now->mark_maybe_poisoned(rank_->partial_failures(), calls_before + op + 1);
  }
}

std::vector<Tensor> Executor::run(const Arguments& arguments, const RandomStart& forward) {
  const Step* running = nullptr;
  bool refused = false;
  const bool on_mesh = std::any_of(states_.begin(), states_.end(), [](const auto& state) { return state->on_mesh; });
  CommQueue* const queue = on_mesh ? &rank_->comm_queue() : nullptr;
  const uint64_t before = on_mesh ? queue->calls_done() : 0;
  // Each op of a program counts as one distributed call.
  const auto done = [&](size_t ops) {
    if (on_mesh) queue->set_calls_done(before + ops);
  };
  try {
    enter(program_.inputs, arguments.inputs);
    enter(program_.parameters, arguments.parameters);
    make_outputs();
    draw_keys(forward);
    count_writes();
    for (const Step& step : steps_) {
      running = &step;
      done(step.op);
      try {
        step.step->run();
      } catch (const CheckError&) {
        refused = true;
        throw;
      }
    }
    done(program_.ops.size());
    if (on_mesh) mark_writes_maybe_poisoned(before);
  } catch (...) {
    if (on_mesh) {
      if (running != nullptr) mark_writes_maybe_poisoned(before);
      done(program_.ops.size());
      call::report_failed_call(*rank_, before + (running == nullptr ? 0 : running->op) + 1, std::current_exception(),
                               "\n  in a captured function");
    }
    if (running != nullptr) take_back(poison(*running, refused));
    if (!options_.keep_arguments) let_go();
    throw;
  }
  std::vector<Tensor> outputs;
  outputs.reserve(program_.outputs.size());
  for (const Named& output : program_.outputs) outputs.push_back(tensor_of(output.value, arguments));
  if (!options_.keep_arguments) let_go();
  return outputs;
}

Tensor Executor::tensor_of(ValueId id, const Arguments& arguments) const {
  if (id == 0) return {};
  // An output that is an argument, even one that was written in place, returns that argument's
  // handle.
  if (const size_t number = places_[handle_of(program_, id)].argument; number != 0) {
    const size_t inputs = arguments.inputs.size();
    return number <= inputs ? arguments.inputs[number - 1] : arguments.parameters[number - 1 - inputs];
  }
  const Place& place = places_[id];
  const Type& type = program_.value(id).type;
  DenseTensor tensor(place.root->now, place.tensor.meta(), place.root->base + place.tensor.offset());
  if (type.spec == nullptr) return Tensor(std::move(tensor));
  return make_dist(*rank_, type.meta, type.spec, std::move(tensor));
}

std::vector<Tensor> Executor::gradients(const Arguments& arguments) const {
  std::vector<Tensor> gradients;
  gradients.reserve(program_.gradients.size());
  for (const GradientEffect& effect : program_.gradients) gradients.push_back(tensor_of(effect.gradient, arguments));
  return gradients;
}

MemoryReport Executor::memory() const {
  MemoryReport report{static_cast<int64_t>(plan_.bytes), static_cast<int64_t>(plan_.live), 0, reshard_peak_};
  for (const std::unique_ptr<Root>& root : roots_) {
    if (root->kind == Root::Kind::output) report.outputs += static_cast<int64_t>(root->bytes);
  }
  return report;
}

}  // namespace shard::program

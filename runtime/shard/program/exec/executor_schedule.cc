#include <algorithm>
#include <unordered_map>

#include "shard/call/fused_loop.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/program/exec/device_loop_step.h"
#include "shard/program/exec/executor_parts.h"
#include "shard/program/ir/cost.h"
#include "shard/program/ir/loops.h"
#include "shard/program/ir/refusals.h"

namespace shard::program {

using call::BoundStep;
using call::BoundTensor;
using call::FusedLoop;
using call::FusedTensor;

namespace {

class ReleaseStep final : public BoundStep {
 public:
  explicit ReleaseStep(std::function<void()> release) : release_(std::move(release)) {}
  void run() override { release_(); }

 private:
  std::function<void()> release_;
};

/// Running more lines in parallel would keep more buffers in use without being faster.
constexpr size_t kLinesPerThread = 4;

/// Buffers of a loop on a device are in use until it ends: it ends behind so many bytes of them.
constexpr size_t kMostKept = size_t{1} << 30;

/// After this many nanoseconds an op has enough work for all threads by itself.
constexpr double kBusy = 1e6;

}  // namespace

/// Decides how the steps of prepared ops run, and where their buffers are in memory.
class Executor::Schedule {
 public:
  explicit Schedule(Executor& executor) : executor_(executor), program_(executor.program_) {
    for (const std::unique_ptr<Root>& root : executor_.roots_) by_storage_[root->stand_in.get()] = root.get();
  }

  void run() {
    release_resharded();
    if (executor_.options_.fuse_block > 0) {
      fuse();
      fuse_on_devices();
    }
    if (executor_.options_.parallel_ns > 0 && cpu::threads() > 1) run_parallel();
    if (executor_.options_.device_graphs) join_recorded();
    place();
  }

 private:
  Root& root_at(const DenseTensor& tensor) { return *by_storage_.at(tensor.storage().get()); }

  /// Results of reshards are freed after the last op that uses them.
  void release_resharded() {
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
          steps.push_back({.step = std::make_unique<ReleaseStep>(
                               [this_ = &executor_, root] { this_->set_root(*root, root->stand_in, 0); }),
                           .op = ended});
        }
      }
    }
    executor_.steps_ = std::move(steps);
  }

  std::vector<FusedTensor> tensors_of(const Step& step) {
    std::vector<FusedTensor> tensors;
    for (const BoundTensor& each : step.step->tensors()) tensors.push_back({each, &root_at(*each.tensor)});
    return tensors;
  }

  /// The tensors of a step that may be part of a loop; empty for other steps.
  std::vector<FusedTensor> fusable(const Step& step) {
    return is_looped(program_.ops[step.op]) ? tensors_of(step) : std::vector<FusedTensor>();
  }

  /// Turns steps of ops that join each other, and have one step each, into loops. Buffers that a
  /// loop uses are in use until it ends.
  void fuse() {
    std::vector<Step> steps;
    std::vector<Step> group;
    std::optional<FusedLoop> loop;
    const auto close = [&] {
      if (group.size() < 2) {
        for (Step& each : group) steps.push_back(std::move(each));
      } else {
        Step fused{.step = loop->make(), .op = group.front().op, .last = group.back().op, .computes = true};
        for (Step& each : group) fused.parts.push_back(std::move(each.step));
        use_throughout(fused);
        steps.push_back(std::move(fused));
      }
      group.clear();
      loop.reset();
    };
    std::vector<int> steps_of(program_.ops.size(), 0);
    for (const Step& step : executor_.steps_) ++steps_of[step.op];
    for (Step& step : executor_.steps_) {
      const std::vector<FusedTensor> tensors = steps_of[step.op] == 1 ? fusable(step) : std::vector<FusedTensor>();
      if (loop && (!program_.ops[step.op].joins || !loop->add(*step.step, tensors))) close();
      if (!loop) {
        loop.emplace(executor_.options_.fuse_block);
        const bool leads = steps_of[step.op] == 1 && step.computes && leads_loop(program_.ops[step.op]);
        if (!(leads ? loop->follow(*step.step, tensors_of(step)) : loop->add(*step.step, tensors))) loop.reset();
      }
      (loop ? group : steps).push_back(std::move(step));
    }
    close();
    executor_.steps_ = std::move(steps);
  }

  /// The device that all tensors of a step are on, if its op may be part of a loop there, or lead one.
  std::optional<Device> looped_on(const Step& step) {
    const Op& op = program_.ops[step.op];
    if (!step.computes || !step.parts.empty() || !(is_looped(op) || leads_loop(op))) return {};
    const std::vector<const DenseTensor*> tensors = step.step->replayable_tensors();
    if (tensors.empty() || tensors.front()->device() == kCpu) return {};
    const Device device = tensors.front()->device();
    const bool loop = backend_of(device).loops.begin != nullptr &&
                      std::all_of(tensors.begin(), tensors.end(),
                                  [&](const DenseTensor* tensor) { return tensor->device() == device; });
    return loop ? std::optional(device) : std::nullopt;
  }

  /// Turns steps of ops that join each other into loops of their device. Results that only the loop reads need not be written.
  void fuse_on_devices() {
    std::vector<Step> steps, group;
    std::optional<Device> device;
    bool has_product = false;
    const auto compiles = [&](Device on) { return backend_of(on).loops.compiles(on.index); };
    const auto gains = [&] { return group.size() >= 2 && (has_product || compiles(*device)); };
    const auto close = [&] {
      if (!gains()) {
        for (Step& each : group) steps.push_back(std::move(each));
      } else {
        const size_t first = group.front().op, last = group.back().op;
        std::vector<DeviceLoopStep::Part> parts(group.size());
        for (const Step& each : group) {
          for (const BoundTensor& tensor : each.step->tensors()) {
            const Root& root = root_at(*tensor.tensor);
            if (!tensor.written || root.kind != Root::Kind::planned || root.first < first || root.last > last) continue;
            const auto after =
                std::find_if(group.begin(), group.end(), [&](const Step& other) { return other.op > root.last; });
            parts[static_cast<size_t>(after - group.begin()) - 1].dropped.push_back(tensor.tensor);
          }
        }
        for (size_t i = 0; i < group.size(); ++i) parts[i].step = std::move(group[i].step);
        executor_.device_fused_ += group.size();
        Step fused{.step = std::make_unique<DeviceLoopStep>(*device, std::move(parts)),
                   .op = first,
                   .last = last,
                   .computes = true};
        use_throughout(fused);
        steps.push_back(std::move(fused));
      }
      group.clear();
      has_product = false;
    };
    size_t kept = 0;  // bytes that the loop so far writes, or its product reads
    for (Step& step : executor_.steps_) {
      const std::optional<Device> here = looped_on(step);
      // Without a compiler there is no loop behind a product, but an epilogue of a bias and an activation.
      const bool ends = has_product && group.size() == 3 && !compiles(*device);
      if (!here || here != device || !program_.ops[step.op].joins || kept > kMostKept || ends) {
        close();
        kept = 0;
      }
      device = here;
      const bool leads = here && leads_loop(program_.ops[step.op]);
      has_product = has_product || leads;
      for (const BoundTensor& tensor : step.step->tensors()) {
        const bool is_kept = tensor.written || (leads && root_at(*tensor.tensor).kind == Root::Kind::planned);
        kept += is_kept ? tensor.tensor->meta().bytes() : 0;
      }
      (here ? group : steps).push_back(std::move(step));
    }
    close();
    executor_.steps_ = std::move(steps);
  }

  /// Buffers that several ops use as one step are in use until it ends.
  void use_throughout(const Step& step) {
    for (size_t op = step.op; op <= step.last; ++op) {
      for (Root* const root : executor_.states_[op]->uses) {
        root->first = std::min(root->first, step.op);
        root->last = std::max(root->last, step.last);
      }
    }
  }

  /// What the consecutive steps of the same ops read and write.
  struct Item {
    size_t first_step, steps, op, last;
    double cost = 0;
    bool refuses = false, lasts = false;  // may refuse values; has writes that outlive the run
    std::vector<Root*> reads = {}, writes = {};
  };

  bool writes(const Op& op, const Root* root) const {
    const auto is_in = [&](ValueId id) { return id != 0 && executor_.places_[id].root == root; };
    if (std::none_of(op.inputs.begin(), op.inputs.end(), [&](const Operand& input) { return is_in(input.value); }))
      return true;
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.writes[o] && is_in(op.outputs[o])) return true;
    }
    return false;
  }

  Item item_at(size_t at) const {
    const std::vector<Step>& steps = executor_.steps_;
    Item item{at, 1, steps[at].op, std::max(steps[at].op, steps[at].last)};
    while (at + item.steps < steps.size() && steps[at + item.steps].computes && steps[at + item.steps].op == item.op)
      ++item.steps;
    for (size_t op = item.op; op <= item.last; ++op) {
      item.cost += cost_of(program_, program_.ops[op]);
      item.refuses = item.refuses || refuses_[op];
      item.lasts = item.lasts || lasts_[op];
      for (Root* const root : executor_.states_[op]->uses)
        (writes(program_.ops[op], root) ? item.writes : item.reads).push_back(root);
    }
    return item;
  }

  static bool meet(const std::vector<Root*>& a, const std::vector<Root*>& b) {
    return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
  }
  /// True if `b`, which comes after `a`, depends on it: also if `b` must not run when `a` fails.
  static bool depend(const Item& a, const Item& b) {
    return (a.refuses && b.lasts) || meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
  }

  /// Runs consecutive items of CPU work in parallel if they are independent of each other. This
  /// pays if each takes longer than starting a task, but not so long that its own loops keep all
  /// threads busy.
  void run_parallel() {
    std::vector<Step> steps;
    std::vector<Item> group;
    const auto close = [&] {
      std::vector<Step>& from = executor_.steps_;
      if (group.size() < 2) {
        for (const Item& item : group)
          std::move(from.begin() + static_cast<std::ptrdiff_t>(item.first_step),
                    from.begin() + static_cast<std::ptrdiff_t>(item.first_step + item.steps),
                    std::back_inserter(steps));
      } else {
        std::vector<ParallelStep::Line> lines;
        Step group_step{.step = nullptr, .op = group.front().op, .last = group.back().last};
        for (const Item& item : group) {
          ParallelStep::Line& line = lines.emplace_back(ParallelStep::Line{{}, {item.op, item.last}});
          for (size_t i = item.first_step; i < item.first_step + item.steps; ++i) {
            line.steps.push_back(from[i].step.get());
            group_step.members.push_back(std::move(from[i]));
          }
        }
        auto step = std::make_unique<ParallelStep>(std::move(lines));
        group_step.parallel = step.get();
        group_step.step = std::move(step);
        use_throughout(group_step);
        steps.push_back(std::move(group_step));
      }
      group.clear();
    };
    for (size_t at = 0; at < executor_.steps_.size();) {
      if (!executor_.steps_[at].computes || !is_on_cpu(executor_.steps_[at].op)) {
        close();
        steps.push_back(std::move(executor_.steps_[at++]));
        continue;
      }
      Item item = item_at(at);
      at += item.steps;
      const bool pays = item.cost >= executor_.options_.parallel_ns && item.cost <= kBusy;
      const bool full = group.size() == kLinesPerThread * static_cast<size_t>(cpu::threads());
      if (!pays || full ||
          std::any_of(group.begin(), group.end(), [&](const Item& other) { return depend(other, item); }))
        close();
      group.push_back(std::move(item));
      if (!pays) close();
    }
    close();
    executor_.steps_ = std::move(steps);
  }
  bool is_on_cpu(size_t op) const {
    const std::vector<Root*>& uses = executor_.states_[op]->uses;
    return std::all_of(uses.begin(), uses.end(), [](const Root* root) { return root->stand_in->device() == kCpu; });
  }

  /// Turns consecutive steps on a device that records into graphs. Their order stays the same, so
  /// buffers are in use as long as before.
  void join_recorded() {
    std::vector<Step> steps, sequence;
    std::optional<Device> device;
    const auto close = [&] {
      // A single kernel gains nothing; a loop is one that need not be looked up again.
      if (sequence.empty() || (sequence.size() == 1 && sequence[0].last <= sequence[0].op)) {
        for (Step& each : sequence) steps.push_back(std::move(each));
      } else {
        std::vector<GraphStep::Part> parts;
        for (Step& each : sequence) parts.push_back({std::move(each.step), each.op, std::max(each.op, each.last)});
        const size_t first = parts.front().op, last = parts.back().last;
        auto graph = std::make_unique<GraphStep>(*device, std::move(parts));
        const GraphStep* const step = graph.get();
        steps.push_back({.step = std::move(graph), .op = first, .last = last, .graph = step});
      }
      sequence.clear();
    };
    for (Step& step : executor_.steps_) {
      const std::optional<Device> here = recorded_on(*step.step);
      if (here != device) close();
      device = here;
      (here ? sequence : steps).push_back(std::move(step));
    }
    close();
    executor_.steps_ = std::move(steps);
  }

  void place() {
    std::vector<Root*> planned;
    std::vector<Lifetime> lifetimes, reshard_peak;
    for (const std::unique_ptr<Root>& root : executor_.roots_) {
      if (root->kind == Root::Kind::made) reshard_peak.push_back({root->bytes, root->first, root->last});
      if (root->kind != Root::Kind::planned || root->stand_in->state() == Storage::State::absent) continue;
      planned.push_back(root.get());
      lifetimes.push_back({root->bytes, root->first, root->last});
    }
    // One block is planned. Programs usually use one device. A program that uses several devices
    // gets one block on each, with the same plan.
    executor_.plan_ = plan_memory(lifetimes);
    executor_.reshard_peak_ = static_cast<int64_t>(plan_memory(reshard_peak).live);
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
  const std::vector<bool> refuses_ = find_refusals(program_), lasts_ = find_lasting_writes(program_);  // by op
  std::unordered_map<const Storage*, Root*> by_storage_;
};

void Executor::schedule() { Schedule(*this).run(); }

}  // namespace shard::program

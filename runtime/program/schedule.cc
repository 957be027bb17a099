#include <algorithm>
#include <unordered_map>

#include "program/executor_parts.h"
#include "program/fusion.h"
#include "program/pointwise.h"

namespace shard::program {

using call::BoundStep;
using call::BoundTensor;

namespace {

class ReleaseStep final : public BoundStep {
 public:
  explicit ReleaseStep(std::function<void()> release) : release_(std::move(release)) {}
  void run() override { release_(); }

 private:
  std::function<void()> release_;
};

}  // namespace

/// Decides how the steps of prepared ops run, and where their buffers lie.
class Executor::Schedule {
 public:
  explicit Schedule(Executor& executor) : executor_(executor), program_(executor.program_) {
    for (const std::unique_ptr<Root>& root : executor_.roots_) by_storage_[root->stand_in.get()] = root.get();
  }

  void run() {
    release_moved();
    if (executor_.options_.fuse_block > 0) fuse();
    if (executor_.options_.device_graphs) join_recorded();
    place();
  }

 private:
  Root& root_at(const DenseTensor& tensor) { return *by_storage_.at(tensor.storage().get()); }

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

  /// Steps that follow each other on a device that records become graphs. Their order stays, so that buffers are in use as long as before.
  void join_recorded() {
    std::vector<Step> steps, sequence;
    std::optional<Device> device;
    const auto close = [&] {
      if (sequence.size() < 2) {
        for (Step& each : sequence) steps.push_back(std::move(each));
      } else {
        std::vector<GraphStep::Part> parts;
        for (Step& each : sequence) parts.push_back({std::move(each.step), each.op});
        const size_t first = parts.front().op, last = parts.back().op;
        auto graph = std::make_unique<GraphStep>(*device, std::move(parts));
        const GraphStep* const step = graph.get();
        steps.push_back({std::move(graph), first, last, {}, step});
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
  std::unordered_map<const Storage*, Root*> by_storage_;
};

void Executor::schedule() { Schedule(*this).run(); }

}  // namespace shard::program

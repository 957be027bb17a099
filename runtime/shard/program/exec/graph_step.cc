#include "shard/program/exec/graph_step.h"

#include <algorithm>

namespace shard::program {

using call::BoundStep;

namespace {

// The number of graphs to keep: buffers take turns if a caller holds on to outputs.
constexpr size_t kGraphs = 4;
// After this many recordings without reuse, addresses count as new in each run.
constexpr size_t kFruitless = 8;

}  // namespace

std::optional<Device> recorded_on(BoundStep& step) {
  const std::vector<const DenseTensor*> tensors = step.replayable_tensors();
  if (tensors.empty()) return std::nullopt;
  const Device device = tensors.front()->device();
  const bool one_device = std::all_of(tensors.begin(), tensors.end(),
                                      [&](const DenseTensor* tensor) { return tensor->device() == device; });
  if (!one_device || backend_of(device).graph_begin == nullptr) return std::nullopt;
  return device;
}

GraphStep::GraphStep(Device device, std::vector<Part> parts) : device_(device), parts_(std::move(parts)) {
  for (const Part& part : parts_) {
    const std::vector<const DenseTensor*> tensors = part.step->replayable_tensors();
    tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  }
}

GraphStep::~GraphStep() { stop_recording(); }

void GraphStep::run() {
  const uint32_t policy = uint32_t{1} << static_cast<uint32_t>(algorithm_policy());
  uint32_t& has_run = has_run_[std::this_thread::get_id()];
  if ((has_run & policy) == 0) {
    run_parts();
    has_run |= policy;
    return;
  }
  if (!records_) return run_parts();
  addresses_.clear();
  for (const DenseTensor* const tensor : tensors_) addresses_.push_back(tensor->raw());
  if (!find() && !record()) {
    stop_recording();
    return run_parts();
  }
  failed_ = {parts_.front().op, parts_.back().last};
  backend_of(device_).graph_launch(device_.index, graphs_.front().handle);
  ++launches_;
}

void GraphStep::run_parts() {
  for (const Part& part : parts_) {
    failed_ = {part.op, part.last};
    part.step->run();
  }
}

/// Moves the graph of these addresses and of the policy in force to the front. Returns false if there is none.
bool GraphStep::find() {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const Graph& graph) {
    return graph.algorithms == algorithm_policy() && graph.addresses == addresses_;
  });
  if (found == graphs_.end()) return false;
  graphs_.splice(graphs_.begin(), graphs_, found);
  fruitless_ = 0;
  return true;
}

/// Records a graph of these addresses and puts it at the front. Returns false if that is not
/// possible. Nothing has run then, and an error of a kernel occurs again when the kernel runs.
bool GraphStep::record() {
  if (fruitless_ == kFruitless) return false;
  const Backend& backend = backend_of(device_);
  void* handle = nullptr;
  try {
    backend.graph_begin(device_.index);
    try {
      run_parts();
    } catch (...) {
      backend.graph_abandon(device_.index);
      throw;
    }
    void* old = nullptr;
    if (graphs_.size() == kGraphs) {
      old = graphs_.back().handle;
      graphs_.pop_back();
    }
    handle = backend.graph_end(device_.index, old);
  } catch (...) { return false; }
  graphs_.push_front({addresses_, algorithm_policy(), handle});
  ++recordings_;
  ++fruitless_;
  return true;
}

void GraphStep::drop_last() {
  backend_of(device_).graph_free(device_.index, graphs_.back().handle);
  graphs_.pop_back();
}

void GraphStep::stop_recording() {
  while (!graphs_.empty()) drop_last();
  records_ = false;
}

}  // namespace shard::program

// Device graphs (Backend::graph_begin): consecutive steps are issued as one graph.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "shard/call/binder.h"
#include "shard/core/algorithm_policy.h"
#include "shard/core/device.h"

namespace shard::program {

/// The device that all work of a step is for, if the device can record and the step does the same
/// in each run; nullopt for other steps.
std::optional<Device> recorded_on(call::BoundStep& step);

/// Steps for which recorded_on returns the same device. The first run under each AlgorithmPolicy issues
/// their work one by one, because what kernels set up in their first call cannot be recorded. Later runs
/// launch a graph of the work at the current addresses of the tensors and under the current policy, and
/// record one if there is none yet. If the addresses are new in each run, or a recording fails, work is
/// issued one by one from then on.
class GraphStep final : public call::BoundStep {
 public:
  struct Part {
    std::unique_ptr<call::BoundStep> step;
    size_t op, last;
  };
  GraphStep(Device device, std::vector<Part> parts);
  ~GraphStep() override;
  void run() override;
  /// Call this after run() has thrown: the first and the last op of what failed. The two are equal
  /// unless a graph could not be launched.
  std::pair<size_t, size_t> failed() const { return failed_; }

  size_t size() const { return parts_.size(); }
  uint64_t recordings() const { return recordings_; }
  uint64_t launches() const { return launches_; }

 private:
  struct Graph {
    std::vector<const void*> addresses;
    AlgorithmPolicy algorithms;  // of its kernels
    void* handle;
  };
  void run_parts();
  bool find();
  bool record();
  void drop_last();
  void stop_recording();

  const Device device_;
  const std::vector<Part> parts_;
  std::vector<const DenseTensor*> tensors_;
  std::vector<const void*> addresses_;  // in this run
  std::list<Graph> graphs_;             // the one used last is the first
  std::pair<size_t, size_t> failed_;
  // Of each thread, a bit for each policy: libraries make what they need in a thread's first call, which cannot be recorded.
  std::map<std::thread::id, uint32_t> has_run_;
  bool records_ = true;
  size_t fruitless_ = 0;  // recordings since a graph was last launched again
  uint64_t recordings_ = 0, launches_ = 0;
};

}  // namespace shard::program

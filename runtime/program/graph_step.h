// Work for a device that records (Backend::graph_begin): steps that follow each other are issued as one graph.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "call/binder.h"
#include "core/device.h"

namespace shard::program {

/// The device that all of a step's work is for, if it records and the step does the same in each run; nothing for other steps.
std::optional<Device> recorded_on(call::BoundStep& step);

/// Steps of which recorded_on gives one device. The first run issues their work one by one: what kernels set up when they are first called is in no
/// recording. Later runs launch a graph of the work at the addresses that the tensors have; one is recorded where none is kept. Where addresses are new
/// in each run, or a recording fails, work is issued one by one for good.
class GraphStep final : public call::BoundStep {
 public:
  struct Part {
    std::unique_ptr<call::BoundStep> step;
    size_t op;
  };
  GraphStep(Device device, std::vector<Part> parts);
  ~GraphStep() override;
  void run() override;
  /// After run() has thrown: the first and the last op of what failed, which is one of them unless a graph could not be launched.
  std::pair<size_t, size_t> failed() const { return failed_; }

  size_t size() const { return parts_.size(); }
  uint64_t recordings() const { return recordings_; }
  uint64_t launches() const { return launches_; }

 private:
  struct Graph {
    std::vector<const void*> addresses;
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
  bool has_run_ = false;
  bool records_ = true;
  size_t fruitless_ = 0;  // recordings since a graph was launched again
  uint64_t recordings_ = 0, launches_ = 0;
};

}  // namespace shard::program

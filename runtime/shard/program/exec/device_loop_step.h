// Loops of elementwise kernels on a device (Backend::loops): consecutive steps that the backend runs as few kernels.
#pragma once

#include <memory>
#include <vector>

#include "shard/call/binder.h"
#include "shard/core/device.h"

namespace shard::program {

class DeviceLoopStep final : public call::BoundStep {
 public:
  struct Part {
    std::unique_ptr<call::BoundStep> step;
    std::vector<const DenseTensor*> dropped = {};  // results that nothing reads after this step
  };
  /// All steps work on `device`.
  DeviceLoopStep(Device device, std::vector<Part> parts) : device_(device), parts_(std::move(parts)) {}
  void run() override;
  std::vector<const DenseTensor*> replayable_tensors() override;

 private:
  const Device device_;
  const std::vector<Part> parts_;
};

}  // namespace shard::program

#include "shard/program/exec/device_loop_step.h"

namespace shard::program {

void DeviceLoopStep::run() {
  run_in_loop(device_, [this] {
    for (const Part& part : parts_) {
      part.step->run();
      for (const DenseTensor* const tensor : part.dropped) backend_of(device_).loops.drop(device_.index, tensor->raw());
    }
  });
}

std::vector<const DenseTensor*> DeviceLoopStep::replayable_tensors() {
  std::vector<const DenseTensor*> all;
  for (const Part& part : parts_) {
    const std::vector<const DenseTensor*> tensors = part.step->replayable_tensors();
    if (tensors.empty()) return {};
    all.insert(all.end(), tensors.begin(), tensors.end());
  }
  return all;
}

}  // namespace shard::program

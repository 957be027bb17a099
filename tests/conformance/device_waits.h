// How often calls on a device wait for it: an op must not, unless the size of its results depends on data.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shard/core/device.h"

namespace shard::testing {

/// Counts the calls of CUDA that make this thread wait. Devices that are not the model's count nothing.
class DeviceWaits {
 public:
  explicit DeviceWaits(Device device);

  /// Returns call(), a call of `op` whose arguments are on the device already.
  template <class Call>
  auto count(const std::string& op, const Call& call) {
    const uint64_t before = so_far();
    auto result = call();
    of_op_[op] += so_far() - before;
    return result;
  }
  /// A line for each op that was called, waits and should not, or should and does not. Where calls were `of_all` ops, also one for each
  /// that should wait and was not called.
  std::string wrong(bool of_all) const;

 private:
  static uint64_t so_far();

  std::map<std::string, uint64_t> of_op_;
};

/// Convolutions, poolings and passes of recurrent networks that cuDNN of the model has computed.
uint64_t calls_of_cudnn();

}  // namespace shard::testing

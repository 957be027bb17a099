#include "shard/kernels/device_work.h"

#include <array>
#include <optional>

#include "shard/core/error.h"
#include "shard/kernels/registry.h"

namespace shard {
namespace {

std::array<std::optional<DeviceWork>, kMaxBackends>& all_work() {
  static std::array<std::optional<DeviceWork>, kMaxBackends> all;
  return all;
}

}  // namespace

void register_device_work(int backend, const DeviceWork& work) {
  if (backend <= 0 || backend >= kMaxBackends) {
    fail(ErrorCode::invalid_argument,
         "register_device_work: {} is not the id of a backend besides the CPU; pass the result of register_backend",
         backend);
  }
  if (work.copy_box == nullptr || work.convert_floats == nullptr || work.reduce_in_order == nullptr ||
      work.fill_identity == nullptr || work.make_mark == nullptr || work.wait_for_mark == nullptr ||
      work.free_mark == nullptr || work.begin_communication == nullptr || work.end_communication == nullptr) {
    fail(ErrorCode::invalid_argument, "register_device_work: a function is missing; set all of DeviceWork");
  }
  const bool has_groups = work.make_group != nullptr;
  if ((work.make_group_id != nullptr) != has_groups || (work.machine_id != nullptr) != has_groups) {
    fail(ErrorCode::invalid_argument, "register_device_work: set all three functions of groups of devices, or none");
  }
  all_work()[static_cast<size_t>(backend)] = work;
}

const DeviceWork* device_work(Device device) {
  if (device == kCpu) return nullptr;
  kernel_table("cast");  // built-in backends are registered with the built-in kernels
  const std::optional<DeviceWork>& work = all_work()[device.backend];
  return work ? &*work : nullptr;
}

}  // namespace shard

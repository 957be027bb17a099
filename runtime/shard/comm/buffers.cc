#include "shard/comm/buffers.h"

#include "shard/comm/reduce.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/error.h"
#include "shard/kernels/device_work.h"

namespace shard {

void check_communicates(Device device, std::string_view op, std::string_view argument) {
  if (device == kCpu || device_work(device) != nullptr) return;
  fail(ErrorCode::mixed_device,
       "[{}] argument '{}' is on {}, a kind of device whose tensors cannot be resharded: copy it with to(kCpu) first, "
       "or "
       "register the functions of the backend by register_device_work",
       op, argument, to_string(device));
}

void copy_box(Device device, const BoxView& to, const BoxView& from, const Dims& extent, size_t element) {
  if (device == kCpu) copy_box(to, from, extent, element);
  else device_work(device)->copy_box(device.index, to, from, extent, element);
}

void convert_floats(Device device, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  if (device == kCpu) return convert_floats(to, to_dtype, from, from_dtype, count);
  if (to == nullptr || from == nullptr) return;
  if (to_dtype == from_dtype) copy_bytes(device, to, device, from, static_cast<size_t>(count) * size_of(to_dtype));
  else device_work(device)->convert_floats(device.index, to, to_dtype, from, from_dtype, count);
}

void reduce_in_order(Device device, void* out, std::span<const void* const> inputs, int64_t count, DType dtype,
                     ReduceType type) {
  if (device == kCpu) reduce_in_order(out, inputs, count, dtype, type);
  else device_work(device)->reduce_in_order(device.index, out, inputs, count, dtype, type);
}

void fill_identity(Device device, void* data, int64_t count, DType dtype, ReduceType type) {
  if (device == kCpu) fill_identity(data, count, dtype, type);
  else device_work(device)->fill_identity(device.index, data, count, dtype, type);
}

DeviceMark::DeviceMark(Device device) : device_(device) {
  if (device != kCpu) mark_ = device_work(device)->make_mark(device.index);
}

DeviceMark::~DeviceMark() {
  if (mark_ != nullptr) device_work(device_)->free_mark(mark_);
}

void DeviceMark::wait(Device device) const {
  if (mark_ == nullptr) return;
  device_work(device_)->wait_for_mark(device_.index, mark_);
  if (device.backend == device_.backend && device.index != device_.index)
    device_work(device)->wait_for_mark(device.index, mark_);
}

CommunicationScope::CommunicationScope(Device device)
    : device_(device), has_begun_(device != kCpu && device_work(device)->begin_communication(device.index)) {}

CommunicationScope::~CommunicationScope() {
  if (has_begun_) device_work(device_)->end_communication(device_.index);
}

}  // namespace shard

// What collectives and reshards do with buffers of the host or of a device.
#pragma once

#include <span>
#include <utility>

#include "shard/core/box_copy.h"
#include "shard/core/device.h"
#include "shard/core/dtype.h"
#include "shard/core/reduce_type.h"

namespace shard {

/// Throws mixed_device where tensors of `device` cannot be communicated: its backend has no DeviceWork.
void check_communicates(Device device, std::string_view op, std::string_view argument);

// The functions of kernels/device_work.h, of a device or of the host. Devices have DeviceWork.
void copy_box(Device device, const BoxView& to, const BoxView& from, const Dims& extent, size_t element);
void convert_floats(Device device, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count);
void reduce_in_order(Device device, void* out, std::span<const void* const> inputs, int64_t count, DType dtype,
                     ReduceType type);
void fill_identity(Device device, void* data, int64_t count, DType dtype, ReduceType type);

/// A place in the work of a thread on a device, for the work of other threads to wait for. On the host, and by default, it is
/// always reached.
class DeviceMark {
 public:
  DeviceMark() = default;
  /// Behind what this thread has issued to the device so far.
  explicit DeviceMark(Device device);
  DeviceMark(DeviceMark&& other) noexcept : device_(other.device_), mark_(std::exchange(other.mark_, nullptr)) {}
  DeviceMark& operator=(DeviceMark&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(mark_, other.mark_);
    return *this;
  }
  ~DeviceMark();

  /// Work that this thread issues to the mark's device, and to `device` where that is of the same kind, begins after the mark.
  void wait(Device device) const;
  /// As DeviceWork has it; null on the host.
  void* get() const { return mark_; }

 private:
  Device device_ = kCpu;
  void* mark_ = nullptr;
};

/// While it exists, work of this thread on a device is for communication: it begins when the marks that it waits for are reached, even
/// if kernels that the thread issued before still run. Later work of the thread waits for it.
class CommunicationScope {
 public:
  explicit CommunicationScope(Device device);
  ~CommunicationScope();
  CommunicationScope(const CommunicationScope&) = delete;
  CommunicationScope& operator=(const CommunicationScope&) = delete;

 private:
  const Device device_;
  const bool has_begun_;
};

}  // namespace shard

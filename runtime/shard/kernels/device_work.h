// What collectives and reshards need of a kind of device beside its memory: copies of boxes, conversions, reductions, and an order
// between the work of several threads.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "shard/core/box_view.h"
#include "shard/core/device.h"
#include "shard/core/dtype.h"
#include "shard/core/export.h"
#include "shard/core/reduce_type.h"
#include "shard/kernels/device_group.h"

namespace shard {

/// The functions of a backend. They issue work to this thread's stream of device `index`, as kernels do, and return before it is
/// done. They mean what the functions of the same names for the host mean, and give the same bits.
struct DeviceWork {
  void (*copy_box)(int index, const BoxView& to, const BoxView& from, const Dims& extent, size_t element) = nullptr;
  void (*convert_floats)(int index, void* to, DType to_dtype, const void* from, DType from_dtype,
                         int64_t count) = nullptr;
  void (*reduce_in_order)(int index, void* out, std::span<const void* const> inputs, int64_t count, DType dtype,
                          ReduceType type) = nullptr;
  void (*fill_identity)(int index, void* data, int64_t count, DType dtype, ReduceType type) = nullptr;
  /// A mark behind the work that this thread has issued so far, for work of other threads to wait for.
  void* (*make_mark)(int index) = nullptr;
  /// Work that this thread issues to device `index` later begins after the mark is reached. The host does not wait.
  void (*wait_for_mark)(int index, void* mark) = nullptr;
  /// May be called before the mark is reached. Does not throw.
  void (*free_mark)(void* mark) = nullptr;
  /// What this thread issues from here on, until end_communication, is for communication: it waits for marks alone, and not for
  /// kernels that the thread has issued before, so that it can run beside them. False where there is no such order now.
  bool (*begin_communication)(int index) = nullptr;
  /// What this thread issues to device `index` later begins after what it issued for communication. Does not throw.
  void (*end_communication)(int index) = nullptr;

  /// Optional: whether CUDA-aware libraries, such as an MPI, read and write the memory of these devices.
  bool is_cuda_memory = false;

  // Optional, all or none: groups of devices that exchange data by themselves.
  /// What tells device `index` from the others of this machine, alike in all of its processes.
  std::string (*machine_id)(int index) = nullptr;
  /// Names a group that is to be made; one member calls it and tells the others.
  std::string (*make_group_id)() = nullptr;
  /// Member `rank` of a group of `size`, on device `index`, which has not joined it. The devices are different. `other`, which may be null,
  /// is a group of the same device and thread: both run what they are given in one order, because devices that run collectives of
  /// two groups in different orders wait for each other forever.
  std::unique_ptr<DeviceGroup> (*make_group)(int index, const std::string& id, int size, int rank,
                                             const DeviceGroup* other) = nullptr;
};

/// Adds the functions of a backend, so that tensors on its devices can be distributed and resharded. Throws invalid_argument where
/// one is missing. To be called before the first use of a device.
SHARD_API void register_device_work(int backend, const DeviceWork& work);

/// Null for the CPU, and for a backend without such functions.
SHARD_API const DeviceWork* device_work(Device device);

}  // namespace shard

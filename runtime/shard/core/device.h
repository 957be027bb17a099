// Devices and their backends. A backend is a registered table of functions; a new kind of device
// adds a table and changes nothing here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/export.h"

namespace shard {

inline constexpr int kMaxBackends = 4;

/// A device: the id of its backend, and its index within that backend. Backend 0 is the CPU.
struct Device {
  uint8_t backend = 0;
  uint8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpu{};

/// Every allocation starts at a multiple of this many bytes.
inline constexpr size_t kAllocationAlignment = 64;

/// How a backend runs several elementwise kernels as one, in which what one makes for the next stays in registers.
struct LoopFunctions {
  /// Whether what is kept becomes one kernel. Otherwise only a product may take what follows it.
  bool (*compiles)(int index) = nullptr;
  /// Until the end, kernels that this thread issues to the device may be kept instead of issued. Other work is issued behind all that
  /// was kept before.
  void (*begin)(int index) = nullptr;
  /// Nothing that comes later reads the result at this address: it need not be written.
  void (*drop)(int index, const void* result) = nullptr;
  /// Issues what was kept.
  void (*end)(int index) = nullptr;
  /// Drops what was kept, after an exception. Does not throw.
  void (*abandon)(int index) = nullptr;
};

/// The functions of a kind of device; testing/backend_conformance.h checks them. All functions
/// except those that free throw Error(device) when the device runtime reports an error. Copies of 0
/// bytes do nothing and may get null pointers.
struct Backend {
  std::string name;  // "cpu", "cuda", ...
  int (*device_count)() = nullptr;
  /// Uninitialised memory, aligned to kAllocationAlignment. 0 bytes may return null, which is never
  /// freed.
  void* (*allocate)(int index, size_t bytes) = nullptr;
  void (*free)(int index, void* data) = nullptr;
  /// Copies within one device.
  void (*copy)(int index, void* to, const void* from, size_t bytes) = nullptr;
  /// Copies between this device and host memory. Return when the host may change `from`, and may read `to`.
  void (*copy_from_host)(int index, void* to, const void* from, size_t bytes) = nullptr;
  void (*copy_to_host)(int index, void* to, const void* from, size_t bytes) = nullptr;
  /// Waits for all work issued to the device by this thread.
  void (*synchronize)(int index) = nullptr;

  /// Optional: copies between two devices of the backend, in the order of this thread's work on both. Without it copies go through
  /// the host.
  void (*copy_between)(int to_index, void* to, int from_index, const void* from, size_t bytes) = nullptr;

  // Optional, all of them or none: graphs of work, which are issued faster than the work one by
  // one. Captured programs use them.
  // Begins a recording: until its end, work that this thread issues to the device is recorded
  // instead of run. That includes kernels, `copy`, and memory that is allocated and freed before
  // the end. Other functions, and kernels that have to wait for the device, may throw meanwhile.
  void (*graph_begin)(int index) = nullptr;
  /// Returns a graph of what was recorded, to be freed. Ends the recording, even where it throws. `old` is null, or a graph that is
  /// needed no more: it becomes the new one, which is faster where the work differs in its addresses alone, or is freed.
  void* (*graph_end)(int index, void* old) = nullptr;
  /// Ends a recording after an exception. Does not throw.
  void (*graph_abandon)(int index) = nullptr;
  /// Issues the work of the graph, at the same addresses, in its order.
  void (*graph_launch)(int index, void* graph) = nullptr;
  /// Any thread may free a graph, even one whose work has been issued and has not run yet. Does not
  /// throw.
  void (*graph_free)(int index, void* graph) = nullptr;

  /// Optional, all of them or none. Captured programs use them.
  LoopFunctions loops = {};
};

/// Adds a backend and returns its id, which Device::backend and register_kernel take. Throws
/// invalid_argument for a name that is taken, for a missing function, for an incomplete set of
/// graph functions, and when there are too many backends. Thread safe.
SHARD_API int register_backend(const Backend& backend);
/// The id of the backend of that name, or -1. Built-in backends are registered from the start.
SHARD_API int find_backend(std::string_view name);
/// The backends besides the CPU that the library was built with and for which this machine has a
/// device. Called once, when a backend is first looked up, so it must not look one up itself.
SHARD_API std::vector<Backend> builtin_backends();
SHARD_API const Backend& backend_of(Device device);
/// Makes the calls between begin and end of a loop of the device (Backend::loops, which it must have). After an exception
/// of theirs the loop is abandoned.
SHARD_API void run_in_loop(Device device, const std::function<void()>& calls);

/// "cpu", "cuda:1"
SHARD_API std::string to_string(Device device);

/// The device that `text` names: "cpu", "cuda" (the first one) or "cuda:1". Throws invalid_argument that names what there is.
SHARD_API Device parse_device(std::string_view text);

/// The devices of the process, as the environment variable SHARD_DEVICE names them, separated by commas: "cuda" (all that there
/// are), "cuda:1", "cuda:0,cuda:1"; the CPU where it is not set. Read once. Throws invalid_argument that names what there is.
SHARD_API const std::vector<Device>& process_devices();

/// Where functions that create tensors put them when no device is given: on that of the innermost DefaultDevice of this thread, which
/// World::run sets to the rank's, otherwise on the first of process_devices().
SHARD_API Device default_device();

/// Makes a device the default of this thread for a scope.
class SHARD_API DefaultDevice {
 public:
  explicit DefaultDevice(Device device);
  DefaultDevice(const DefaultDevice&) = delete;
  DefaultDevice& operator=(const DefaultDevice&) = delete;
  ~DefaultDevice();

 private:
  Device device_;
  const Device* before_;
};

/// Copies bytes between any two devices (through the host where the backends differ).
SHARD_API void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes);

}  // namespace shard

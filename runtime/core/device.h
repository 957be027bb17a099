// Devices and their backends. A backend is a registered table of functions; a new kind of device adds one, here nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shard {

inline constexpr int kMaxBackends = 4;

/// A device: which backend, and which of its devices. Backend 0 is the CPU.
struct Device {
  uint8_t backend = 0;
  uint8_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr Device kCpu{};

/// What a kind of device must offer. All functions throw Error(device) when the device runtime reports one.
struct Backend {
  std::string name;  // "cpu", "cuda", ...
  int (*device_count)() = nullptr;
  void* (*allocate)(int index, size_t bytes) = nullptr;
  void (*free)(int index, void* data) = nullptr;
  /// Copies within one device.
  void (*copy)(int index, void* to, const void* from, size_t bytes) = nullptr;
  /// Copies between this device and host memory; returns when the bytes are there.
  void (*copy_from_host)(int index, void* to, const void* from, size_t bytes) = nullptr;
  void (*copy_to_host)(int index, void* to, const void* from, size_t bytes) = nullptr;
  /// Waits for all work issued to the device by this thread.
  void (*synchronize)(int index) = nullptr;
};

/// Adds a backend and returns its id. Registering a name again returns the first id and changes nothing.
/// Throws invalid_argument when there is no room for another one.
int register_backend(const Backend& backend);
/// The id of the backend of that name, or -1.
int find_backend(std::string_view name);
const Backend& backend_of(Device device);

/// "cpu", "cuda:1"
std::string to_string(Device device);

/// Copies bytes between any two devices (through the host where the backends differ).
void copy_bytes(Device to_device, void* to, Device from_device, const void* from, size_t bytes);

}  // namespace shard

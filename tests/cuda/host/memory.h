// Device memory of the model: one range of addresses, in which the host must not read or write by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stream_clock.h"

namespace cuda_host {

/// Who made an access: when, in which stream, which thread of the block, and how many __syncwarp it had passed. Intervals are numbered
/// through all work: they begin with a copy, a call of a library or a block, and with each barrier.
struct Access {
  uint32_t interval = 0;  // 0: nobody
  uint32_t thread : 10 = 0;
  uint32_t order : 15 = 0;
  uint32_t stream : 6 = 0;
  uint32_t atomic : 1 = 0;
};
static_assert(sizeof(Access) == 8 && kMostStreams <= 1 << 6);

/// What is known of a granule: who wrote it last, and two threads that read it since.
struct Cell {
  Access write, read, other_read;
};

constexpr size_t kMostTracked = size_t{32} << 20;  // larger regions are checked for bounds alone

/// An allocation, or a variable in shared memory.
struct Region {
  char* data = nullptr;
  size_t bytes = 0;
  const char* name = nullptr;       // of a variable
  int granule_shift = 2;            // a granule has 1, 2 or 4 bytes: 1 << granule_shift
  std::vector<Cell> cells;          // made by the first access
  std::vector<uint8_t> is_written;  // of each byte that a tracked region has; made by the first write
  uint64_t id = 0;                  // of an allocation, among all
  StreamClock last_use;             // by each stream
  int made_by = 0;                  // the stream in whose order it is allocated, which comes to that at `made`
  uint32_t made = 0;

  /// Whether all accesses are seen, so that something is known of each byte.
  bool is_tracked() const {
#ifdef CUDA_HOST_INSTRUMENTED
    return bytes <= kMostTracked;
#else
    return false;
#endif
  }

  bool contains(const void* at) const {
    return static_cast<const char*>(at) >= data && static_cast<const char*>(at) < data + bytes;
  }
};

/// Memory of a device, aligned to 256 bytes; null where the device has not so much left.
void* allocate_device(int device, size_t bytes);
/// Whether `data` was the start of an allocation.
bool release_device(void* data);
/// The allocation that `at` is in; null where there is none.
Region* find_region(const void* at);
bool is_device_memory(const void* at);
/// Whether all bytes are in memory of the host that devices may use (cudaMallocHost).
bool is_pinned_memory(const void* at, size_t bytes);
/// The device of an allocation; -1 for what is none.
int device_of(const void* data);
/// Whether `peer` may access the memory of `device`.
bool is_accessible(int device, int peer);
/// Bytes that are free, of those that the device has.
void device_memory(int device, size_t& free, size_t& total);
/// Remembers that somebody outside of streams wrote to device memory.
void mark_written(void* at, size_t bytes);

/// While one of these lives, device memory may be read and written; else the process ends with a signal.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

/// As if the process had begun: no device has a context (shard::cuda::has_context), until it is made the current one or has work.
void forget_contexts();

}  // namespace cuda_host

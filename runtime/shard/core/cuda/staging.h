// Copies between the host and the current device through pinned memory of this thread, which the device reads and writes by itself:
// of other memory the driver makes a copy first, and the host waits for it.
#pragma once

#include <cstddef>

namespace shard::cuda {

/// Returns when `from` has been read; the device may not have its copy yet, but work that this thread issues later sees it.
void copy_from_host_staged(void* to, const void* from, size_t bytes);

/// Waits for the work of this thread's stream and copies its result.
void copy_to_host_staged(void* to, const void* from, size_t bytes);

}  // namespace shard::cuda

// What instrumented kernels do with memory. The sources of kernels are compiled with -fsanitize=thread, and the calls that this
// puts before each access are answered by the model: it checks bounds, initialisation and races, and counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "grid.h"

namespace cuda_host {

// Where the running thread is; called by grid.cc.
void accessing_grid(const Grid& grid);
void accessing_end();
void accessing_block(uint3 index);
void accessing_next_interval();
void accessing_thread(int number, int warp_order, const void* stack, size_t stack_bytes);
void shared_begin(void* data, size_t bytes);
void shared_variable_added(void* data, size_t bytes, const char* name);

/// "kernel K, block (0, 0, 0), thread (3, 0, 0)"
std::string running_thread();
/// Ends the running grid with a finding; does not return to the kernel, and unwinds nothing.
[[noreturn]] void abandon(const std::string& finding);

enum class Kind { read, write, atomic };
/// An access of the running thread to `bytes` bytes; nothing outside of kernels. `place` tells accesses of the source apart.
void access(const void* at, size_t bytes, Kind kind, const void* place);

/// What a grid did with the memory of the device.
struct GridLog {
  std::string kernel;
  /// Lanes of a warp that access the same bytes at once count as one.
  uint64_t bytes_read = 0, bytes_written = 0;
  /// 32-byte sectors that the accesses of warps touch, and the least number that holds as many different bytes.
  uint64_t sectors = 0, least_sectors = 0;
};
/// From now on, until `end_log`, grids are logged.
void begin_log();
std::vector<GridLog> end_log();

}  // namespace cuda_host

// What instrumented kernels do with memory. The sources of kernels are compiled with -fsanitize=thread, and the calls that this
// puts before each access are answered by the model: it checks bounds, initialisation and races, and counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "grid.h"
#include "stream_clock.h"

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

/// A copy or a call of a library reads or writes a range of device memory. Throws Finding where the range is not within one allocation, or where
/// another stream uses it and neither waits for the other. `what` begins the text: "cublasLtMatmul: matrix A".
void use_range(const std::string& what, const void* data, size_t bytes, Kind kind);
/// An allocation is freed in the order of a stream (0: of many), behind `before`: throws Finding where other streams may still use it.
void check_unused(const void* data, int stream, const StreamClock& before);
/// Work of a stream is where memory is allocated in its order.
void made(const void* data);

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

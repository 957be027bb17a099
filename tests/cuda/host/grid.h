// Runs the threads of a CUDA kernel on the host: blocks one after another in shuffled order, the threads of a block as fibers.
// It refuses what is undefined on a device: barriers that not all threads reach, shuffles from threads that take no part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 from) : x(from.x), y(from.y), z(from.z) {}
};

namespace cuda_host {

inline constexpr int kWarpSize = 32;

/// What a kernel does that is undefined, or that the model refuses. The text names kernel, block and thread.
class Finding : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A launch: the kernel's name, its grid, and what each thread runs.
struct Grid {
  std::string name;
  dim3 blocks;
  dim3 threads;
  size_t dynamic_shared = 0;
  void (*thread)(const void* arguments) = nullptr;
  // What it is called with, and may read.
  std::shared_ptr<const void> arguments;
  size_t argument_bytes = 0;
};

/// Runs all blocks, in an order that is shuffled with the seed in CUDA_HOST_SEED (1 where it is not set); returns when the last has ended.
/// Throws Finding. One grid runs at a time in a process.
void run(const Grid& grid);

// What the functions and variables of CUDA are made of; they are called by threads of a kernel only.

/// The indices of the running thread, and the sizes of its grid.
struct Position {
  uint3 thread, block;
  dim3 threads, blocks;
};
extern thread_local Position position;

/// __syncthreads. `line` says where it is: all threads of a block must wait at the same place.
void barrier(const char* file, int line);
/// __syncthreads_count, and what is like it: the number of threads of the block with `value`.
int barrier_count(bool value, const char* file, int line);

/// The value that each lane of a warp gave, and which lanes took part.
struct Lanes {
  uint64_t values[kWarpSize];
  unsigned present;
};
/// All lanes that `mask` names meet, exchange a value, and go on. `what` is the name of the function for messages.
const Lanes& meet(unsigned mask, uint64_t value, const char* what);
/// __syncwarp: like `meet`, and what the lanes wrote before is visible to them afterwards.
void meet_and_order(unsigned mask);
int lane();
/// Copies what is at the address that lane `source` gave in with_lanes.
void copy_of_lane(const Lanes& lanes, int source, void* to, size_t bytes);
/// The lanes meet when each has read so many values of others: as many as the others, because a device shuffles them.
void end_reads_of_lanes(unsigned mask, uint64_t reads);
/// Throws: lane `source` takes no part in a shuffle.
[[noreturn]] void fail_lane(const char* what, int source);

/// Shared memory of the running block for the variable that `key` stands for. Uninitialised: filled with a pattern.
void* shared_variable(const void* key, size_t bytes, size_t alignment, const char* name);
void* dynamic_shared();

}  // namespace cuda_host

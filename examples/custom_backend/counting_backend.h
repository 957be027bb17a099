// An out-of-tree backend: a CPU under another name that counts the calls of its functions. Its
// kernels are in counting_kernels.cc.
#pragma once

#include <atomic>

#include <shard/kernel.h>

namespace counting {

struct Counters {
  std::atomic<int> allocations = 0, frees = 0, copies = 0, launches = 0;
};
Counters& counters();

/// Registers the backend "counting" and its kernels. Call it once.
shard::Device register_backend();

/// Registers the kernels of that backend; called by register_backend.
void register_kernels(int backend);

}  // namespace counting

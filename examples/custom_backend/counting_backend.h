// A backend out of tree: a CPU of its own name that counts what it is asked for. Its kernels are in counting_kernels.cc.
#pragma once

#include <atomic>

#include "core/device.h"

namespace counting {

struct Counters {
  std::atomic<int> allocations = 0, frees = 0, copies = 0, launches = 0;
};
Counters& counters();

/// Registers the backend "counting" and its kernels; to be called once.
shard::Device register_backend();

/// For register_backend: the kernels of that backend.
void register_kernels(int backend);

}  // namespace counting

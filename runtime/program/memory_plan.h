// Where the buffers of a program lie in one block of memory: those that are not in use at the same time share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shard::program {

/// A buffer that is in use from step `first` to step `last`, both included.
struct Lifetime {
  size_t bytes = 0;
  size_t first = 0;
  size_t last = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // of each buffer, multiples of kAllocationAlignment
  size_t bytes = 0;             // of the block
  size_t live =
      0;  // the most bytes that are in use at one time; `bytes` is at least that, and fragmentation what is beyond
};

/// Largest first, each at the lowest place that is free while it is in use.
MemoryPlan plan_memory(const std::vector<Lifetime>& buffers);

}  // namespace shard::program

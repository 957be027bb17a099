// Memory planning: places the buffers of a program in one block of memory. Buffers that are not in
// use at the same time share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/core/export.h"

namespace shard::program {

/// The time in which a buffer is in use: from step `first` to step `last`, both included.
struct Lifetime {
  size_t bytes = 0;
  size_t first = 0;
  size_t last = 0;
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // for each buffer, a multiple of kAllocationAlignment
  size_t bytes = 0;             // size of the block
  // Peak bytes in use. `bytes` is at least that; the difference is fragmentation.
  size_t live = 0;
};

/// Places the largest buffers first, each at the lowest offset that is free during its lifetime.
SHARD_API MemoryPlan plan_memory(const std::vector<Lifetime>& buffers);

}  // namespace shard::program

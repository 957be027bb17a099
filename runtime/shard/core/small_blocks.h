// Memory of the small objects that a call makes and drops: tensors, their buffers, steps of autograd.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "shard/core/export.h"

namespace shard {

/// A block of `bytes`, aligned as malloc's, or null where there is no memory. A thread keeps some of the
/// blocks that it frees and takes the next ones from them, which needs a tenth of malloc's instructions;
/// larger blocks, and all with sanitizers, come from malloc.
SHARD_API void* allocate_block(size_t bytes);
/// Frees a block in any thread; `bytes` are those it was allocated with.
SHARD_API void free_block(void* block, size_t bytes);

/// The blocks that a thread keeps: a list for each multiple of 64 bytes.
struct SmallBlocks {
  static constexpr size_t kStep = 64;
  static constexpr size_t kMost = 1024;
  static constexpr uint8_t kKept = 16;  // of each size

  struct Block {
    Block* next;
  };
  struct List {
    Block* first = nullptr;
    uint8_t count = 0;
    uint8_t limit = 0;  // 0 before the thread has freed a block, and when it ends
  };
  std::array<List, kMost / kStep> lists{};
};

}  // namespace shard

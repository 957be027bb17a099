// Freed blocks of small objects serve the next ones of their thread, up to a limit.
#include "shard/core/small_blocks.h"

#include <malloc.h>

#include <catch2/catch.hpp>

#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "shard/core/thread_state.h"
#include "support/sanitized.h"

namespace small_blocks_test {

using namespace shard;

namespace {

const SmallBlocks::List& list_of(size_t bytes) { return this_thread.blocks.lists[(bytes - 1) / SmallBlocks::kStep]; }

/// Frees a block, so that the lists of this thread are open.
void open_lists() { free_block(allocate_block(1), 1); }

}  // namespace

TEST_CASE("a freed block serves the next object of about its size in the same thread") {
  if (test::kSanitized) return test::skip_kept_memory();
  open_lists();
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{65}, SmallBlocks::kMost}) {
    void* const first = allocate_block(bytes);
    const uint8_t before = list_of(bytes).count;
    free_block(first, bytes);
    CHECK(list_of(bytes).count == before + 1);
    void* const largest = allocate_block((bytes + 63) / 64 * 64);
    CHECK(largest == first);
    std::memset(largest, 1, (bytes + 63) / 64 * 64);
    free_block(largest, (bytes + 63) / 64 * 64);
  }
}

TEST_CASE("a thread keeps few blocks of each size, and no large ones") {
  if (test::kSanitized) return test::skip_kept_memory();
  open_lists();
  std::vector<void*> blocks;
  for (int i = 0; i < 3 * SmallBlocks::kKept; ++i) blocks.push_back(allocate_block(100));
  for (void* const block : blocks) free_block(block, 100);
  CHECK(list_of(100).count == SmallBlocks::kKept);
  const SmallBlocks before = this_thread.blocks;
  free_block(allocate_block(SmallBlocks::kMost + 1), SmallBlocks::kMost + 1);
  free_block(allocate_block(0), 0);
  for (size_t i = 0; i < before.lists.size(); ++i) CHECK(this_thread.blocks.lists[i].count == before.lists[i].count);
}

TEST_CASE("a thread that ends gives its blocks back") {
  if (test::kSanitized) return test::skip_kept_memory();
  constexpr int kThreads = 500;
  const auto run = [] {
    std::thread([] {
      std::vector<void*> blocks;
      for (int i = 0; i <= SmallBlocks::kKept; ++i) blocks.push_back(allocate_block(SmallBlocks::kMost));
      for (void* const block : blocks) free_block(block, SmallBlocks::kMost);
    }).join();
  };
  run();
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kThreads; ++i) run();
  const size_t after = mallinfo2().uordblks;
  CHECK(after < before + kThreads * SmallBlocks::kMost);  // of the 16 times as many that they kept
}

}  // namespace small_blocks_test

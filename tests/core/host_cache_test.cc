// Large freed blocks of host memory are reused, up to a limit.
#include <catch2/catch.hpp>

#include "shard/core/dense_tensor.h"
#include "shard/core/host_cache.h"

namespace host_cache_test {

using namespace shard;

TEST_CASE("a large block that is freed serves the next allocation of about its size") {
  release_host_cache();
  const size_t bytes = 4 * kHostCacheBlock;
  const void* first = nullptr;
  {
    const auto block = Storage::allocate(kCpu, bytes);
    first = block->data();
  }
  CHECK(host_cache_stats().bytes == bytes);
  const HostCacheStats before = host_cache_stats();
  const auto smaller = Storage::allocate(kCpu, bytes - 100);
  CHECK(smaller->data() == first);
  CHECK(host_cache_stats().hits == before.hits + 1);
  CHECK(host_cache_stats().bytes == 0);
  const auto other = Storage::allocate(kCpu, bytes);
  CHECK(other->data() != first);
  CHECK(host_cache_stats().misses == before.misses + 1);
}

TEST_CASE("the cache keeps no more than its bound, no small blocks, and gives all back when asked") {
  release_host_cache();
  { const auto small = Storage::allocate(kCpu, kHostCacheBlock - 64); }
  CHECK(host_cache_stats().bytes == 0);
  {
    std::vector<Ref<Storage>> blocks;
    for (size_t held = 0; held <= kHostCacheBytes; held += kHostCacheBytes / 8)
      blocks.push_back(Storage::allocate(kCpu, kHostCacheBytes / 8));
  }
  CHECK(host_cache_stats().bytes == kHostCacheBytes);
  release_host_cache();
  CHECK(host_cache_stats().bytes == 0);
}

}  // namespace host_cache_test

#include "shard/core/host_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "shard/core/device.h"

namespace shard {
namespace {

struct Block {
  void* data;
  size_t bytes;
};

struct Cache {
  std::mutex mutex;
  std::unordered_map<void*, size_t> large;  // in use
  std::vector<Block> kept;                  // oldest first
  HostCacheStats stats;
};

/// Never destroyed: tensors may be freed while the process ends.
Cache& cache() {
  static Cache* const instance = new Cache;
  return *instance;
}

/// A block of the system. Large ones are in huge pages where the system has them: strided access, such as that of a
/// transpose, misses the TLB for each element otherwise.
void* map_block(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (bytes < 2 * kHugePage) return std::aligned_alloc(kAllocationAlignment, bytes);
  // A multiple of the alignment, as the standard wants; what lies beyond `bytes` is never touched.
  void* const data = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  if (data != nullptr) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // advice: a failure is harmless
#endif
  return data;
}

}  // namespace

HostCacheStats host_cache_stats() {
  Cache& all = cache();
  const std::lock_guard lock(all.mutex);
  return all.stats;
}

void release_host_cache() {
  Cache& all = cache();
  const std::lock_guard lock(all.mutex);
  for (const Block& block : all.kept) std::free(block.data);
  all.kept.clear();
  all.stats.bytes = 0;
}

void* allocate_host(size_t bytes) {
  bytes = (bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
  if (bytes < kHostCacheBlock) return std::aligned_alloc(kAllocationAlignment, bytes);
  Cache& all = cache();
  {
    const std::lock_guard lock(all.mutex);
    // The most recently freed block whose size fits: at most a quarter is wasted.
    const auto fits = [&](const Block& block) { return block.bytes >= bytes && block.bytes - bytes <= bytes / 4; };
    const auto found = std::find_if(all.kept.rbegin(), all.kept.rend(), fits);
    if (found != all.kept.rend()) {
      const Block block = *found;
      all.kept.erase(std::next(found).base());
      all.large.emplace(block.data, block.bytes);
      all.stats.bytes -= block.bytes;
      ++all.stats.hits;
      return block.data;
    }
    ++all.stats.misses;
  }
  void* data = map_block(bytes);
  if (data == nullptr) {
    release_host_cache();
    data = map_block(bytes);
  }
  if (data == nullptr) return nullptr;
  const std::lock_guard lock(all.mutex);
  all.large.emplace(data, bytes);
  return data;
}

void free_host(void* data) {
  Cache& all = cache();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.large.find(data);
    if (found != all.large.end()) {
      const size_t bytes = found->second;
      all.large.erase(found);
      if (all.stats.bytes + bytes <= kHostCacheBytes) {
        all.kept.push_back({data, bytes});
        all.stats.bytes += bytes;
        return;
      }
    }
  }
  std::free(data);
}

}  // namespace shard

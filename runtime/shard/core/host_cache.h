// Keeps large freed blocks of host memory for the next allocation, because freshly mapped pages
// cost several times the copy that fills them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace shard {

/// Blocks of at least this many bytes are kept when they are freed, up to kHostCacheBytes in total.
/// One cache per process; thread safe.
inline constexpr size_t kHostCacheBlock = size_t{64} << 10;
inline constexpr size_t kHostCacheBytes = size_t{512} << 20;

struct HostCacheStats {
  uint64_t hits = 0;  // large allocations that were served by a kept block
  uint64_t misses = 0;
  size_t bytes = 0;  // kept at present
};
HostCacheStats host_cache_stats();
/// Returns all kept blocks to the system.
void release_host_cache();

/// The allocation functions of the CPU backend. Null when there is no memory, even after
/// release_host_cache().
void* allocate_host(size_t bytes);
void free_host(void* data);

/// Uninitialised memory that a kernel needs during a call.
class HostBlock {
 public:
  explicit HostBlock(size_t bytes) : data_(bytes == 0 ? nullptr : allocate_host(bytes)) {
    if (bytes != 0 && data_ == nullptr) throw std::bad_alloc();
  }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  ~HostBlock() { free_host(data_); }
  void* data() const { return data_; }

 private:
  void* data_;
};

}  // namespace shard

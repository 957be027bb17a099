// The memory of scratch.h: each thread keeps what was given back, up to a limit.
#include "shard/kernels/cpu/scratch.h"

#include <map>
#include <new>

namespace shard::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kPage = 4096, kMost = size_t{4} << 20;  // bytes that a thread keeps

size_t rounded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// What a thread keeps, by size.
struct Kept {
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { release(); }
  void release() {
    for (const auto& [size, data] : all) ::operator delete(data, kAlignment);
    all.clear();
    total = 0;
  }

  std::multimap<size_t, void*> all;
  size_t total = 0;
};

Kept& kept() {
  thread_local Kept mine;
  return mine;
}

}  // namespace

void* take_scratch(size_t bytes) {
  Kept& mine = kept();
  const size_t size = rounded(bytes);
  const auto found = mine.all.find(size);
  if (found == mine.all.end()) return ::operator new(size, kAlignment);
  void* const data = found->second;
  mine.all.erase(found);
  mine.total -= size;
  return data;
}

void give_scratch(void* data, size_t bytes) {
  Kept& mine = kept();
  const size_t size = rounded(bytes);
  if (size > kMost) return ::operator delete(data, kAlignment);
  if (mine.total + size > kMost) mine.release();  // of sizes that are not needed any more
  mine.all.emplace(size, data);
  mine.total += size;
}

}  // namespace shard::cpu

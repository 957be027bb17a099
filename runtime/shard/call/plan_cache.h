// The cache of call plans of one rank. It is bounded and evicts the least recently used plan. A hit
// allocates nothing.
#pragma once

#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "shard/call/dry_report.h"
#include "shard/call/plan.h"
#include "shard/core/dense_tensor.h"
#include "shard/core/export.h"
#include "shard/core/small_vec.h"
#include "shard/dist/world.h"

namespace shard::call {

/// A cache key as a sequence of words: op, layouts, shapes, attributes.
using KeyWords = SmallVec<uint64_t, 64>;

struct CacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  uint64_t entries = 0;             // plans in the cache now
  uint64_t promoted_arguments = 0;  // plain tensors that were treated as replicated
  uint64_t fallback_calls = 0;      // calls of ops without a rule, with everything replicated
  int64_t fallback_bytes = 0;
};

class SHARD_API PlanCache final : public RankExtension {
 public:
  static constexpr size_t kDefaultCapacity = 4096;

  /// The cache of a rank. It is created on first use.
  static PlanCache& of(Rank& rank);

  /// The plan of this key, or null. A hit becomes the most recently used plan.
  const CallPlan* find(const KeyWords& key, uint64_t hash);
  /// Adds a plan. The reference is valid until the plan is evicted.
  const CallPlan& insert(const KeyWords& key, uint64_t hash, CallPlan plan);

  /// Limits the cache to `capacity` plans, at least one.
  void set_capacity(size_t capacity);

  CacheStats stats() const;
  void count_promoted() { ++stats_.promoted_arguments; }
  void count_fallback(int64_t bytes) {
    ++stats_.fallback_calls;
    stats_.fallback_bytes += bytes;
  }
  /// Lends an empty list of tensors for the duration of a call. The lists keep their memory, so
  /// that a call whose plan is cached allocates nothing but its outputs.
  std::vector<DenseTensor> take_list() {
    if (spare_lists_.empty()) return {};
    std::vector<DenseTensor> list = std::move(spare_lists_.back());
    spare_lists_.pop_back();
    return list;
  }
  void give_list(std::vector<DenseTensor> list) {
    list.clear();
    spare_lists_.push_back(std::move(list));
  }

  /// The calls of this rank, in a dry world.
  DryCalls dry_calls;

 private:
  struct Entry {
    KeyWords key;
    uint64_t hash;
    CallPlan plan;
  };
  using Place = std::list<Entry>::iterator;

  void evict_oldest();

  size_t capacity_ = kDefaultCapacity;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_multimap<uint64_t, Place> by_hash_;
  CacheStats stats_;
  std::vector<std::vector<DenseTensor>> spare_lists_;
};

inline uint64_t hash_words(const KeyWords& key) {
  uint64_t hash = 0x9E3779B97F4A7C15u ^ key.size();
  for (uint64_t word : key) {
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

/// Continues the hash `hash` with these bytes.
SHARD_API uint64_t hash_bytes(uint64_t hash, const void* data, size_t bytes);

/// Cache statistics of a rank: how often its distributed calls found their plan, and how often
/// policies applied.
SHARD_API CacheStats plan_cache_stats(Rank& rank);
/// Limits the plan cache of the rank to `capacity` plans (4096 by default). The least recently used
/// plans are evicted at once. Throws invalid_argument for 0.
SHARD_API void set_plan_cache_capacity(Rank& rank, size_t capacity);

}  // namespace shard::call

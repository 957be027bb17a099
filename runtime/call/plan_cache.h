// The cache of call plans of one rank: bounded, least recently used goes first; a hit allocates nothing.
#pragma once

#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include "call/dry_report.h"
#include "call/plan.h"
#include "core/dense_tensor.h"
#include "core/small_vec.h"
#include "dist/world.h"

namespace shard::call {

/// A key as a sequence of words: op, layouts, shapes, attributes.
using KeyWords = SmallVec<uint64_t, 64>;

struct CacheStats {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t evictions = 0;
  uint64_t entries = 0;             // plans that are kept now
  uint64_t promoted_arguments = 0;  // plain tensors that counted as replicated
  uint64_t fallback_calls = 0;      // of ops without a rule, everything replicated
  int64_t fallback_bytes = 0;
};

class PlanCache final : public RankExtension {
 public:
  static constexpr size_t kDefaultCapacity = 4096;

  /// The cache of a rank, made on first use.
  static PlanCache& of(Rank& rank);

  /// The plan of that key, or null. A hit becomes the most recently used.
  const CallPlan* find(const KeyWords& key, uint64_t hash);
  /// Adds a plan; the reference is valid until it is evicted.
  const CallPlan& insert(const KeyWords& key, uint64_t hash, CallPlan plan);

  /// Keeps at most `capacity` plans from now on, at least one.
  void set_capacity(size_t capacity);

  CacheStats stats() const;
  void count_promoted() { ++stats_.promoted_arguments; }
  void count_fallback(int64_t bytes) {
    ++stats_.fallback_calls;
    stats_.fallback_bytes += bytes;
  }
  /// Empty lists of tensors for the time of a call. They keep their memory, so that a call whose plan is cached allocates
  /// nothing but its outputs.
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

  /// The calls of a rank of a dry world.
  DryCalls dry_calls;
  /// Calls this for every call that the rank makes, when set.
  std::function<void(const CallRecord&)> observer;

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

/// A hash of bytes that goes on from `hash`.
uint64_t hash_bytes(uint64_t hash, const void* data, size_t bytes);

/// How often a rank's distributed calls found their plan, and what its calls did under policies.
CacheStats plan_cache_stats(Rank& rank);
/// Has the rank keep at most `capacity` plans (4096 at first); the least recently used go at once. Throws invalid_argument for 0.
void set_plan_cache_capacity(Rank& rank, size_t capacity);
/// Has `observer` told of every distributed call of this rank; an empty one ends that.
void observe_calls(Rank& rank, std::function<void(const CallRecord&)> observer);

}  // namespace shard::call

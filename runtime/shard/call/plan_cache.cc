#include "shard/call/plan_cache.h"

#include <algorithm>
#include <cstring>

namespace shard::call {

PlanCache& PlanCache::of(Rank& rank) {
  if (!rank.extension) rank.extension = std::make_unique<PlanCache>();
  return static_cast<PlanCache&>(*rank.extension);
}

const CallPlan* PlanCache::find(const KeyWords& key, uint64_t hash) {
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Place place = it->second;
    if (!(place->key == key)) continue;
    if (place != entries_.begin()) entries_.splice(entries_.begin(), entries_, place);
    ++stats_.hits;
    return &place->plan;
  }
  ++stats_.misses;
  return nullptr;
}

const CallPlan& PlanCache::insert(const KeyWords& key, uint64_t hash, CallPlan plan) {
  while (entries_.size() >= capacity_) evict_oldest();
  entries_.push_front({key, hash, std::move(plan)});
  by_hash_.emplace(hash, entries_.begin());
  return entries_.front().plan;
}

void PlanCache::evict_oldest() {
  const Place oldest = std::prev(entries_.end());
  const auto [first, last] = by_hash_.equal_range(oldest->hash);
  for (auto it = first; it != last; ++it) {
    if (it->second != oldest) continue;
    by_hash_.erase(it);
    break;
  }
  entries_.erase(oldest);
  ++stats_.evictions;
}

void PlanCache::set_capacity(size_t capacity) {
  if (capacity == 0)
    fail(ErrorCode::invalid_argument,
         "the capacity of a plan cache is 0, but must be at least 1: the cache holds the plan of the running call");
  capacity_ = capacity;
  while (entries_.size() > capacity_) evict_oldest();
}

uint64_t hash_bytes(uint64_t hash, const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + i, std::min(sizeof word, bytes - i));
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
  }
  return hash;
}

CacheStats PlanCache::stats() const {
  CacheStats stats = stats_;
  stats.entries = entries_.size();
  return stats;
}

CacheStats plan_cache_stats(Rank& rank) { return PlanCache::of(rank).stats(); }

void set_plan_cache_capacity(Rank& rank, size_t capacity) { PlanCache::of(rank).set_capacity(capacity); }

}  // namespace shard::call

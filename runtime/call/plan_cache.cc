#include "call/plan_cache.h"

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
  if (entries_.size() == kCapacity) {
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
  entries_.push_front({key, hash, std::move(plan)});
  by_hash_.emplace(hash, entries_.begin());
  return entries_.front().plan;
}

CacheStats plan_cache_stats(Rank& rank) { return PlanCache::of(rank).stats(); }

void observe_calls(Rank& rank, std::function<void(const CallRecord&)> observer) { PlanCache::of(rank).observer = std::move(observer); }

}  // namespace shard::call

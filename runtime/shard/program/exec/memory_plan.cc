#include "shard/program/exec/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "shard/core/device.h"

namespace shard::program {
namespace {

size_t aligned(size_t bytes) {
  return (bytes + kAllocationAlignment - 1) / kAllocationAlignment * kAllocationAlignment;
}

size_t most_live(const std::vector<Lifetime>& buffers) {
  std::vector<std::pair<size_t, int64_t>> changes;
  for (const Lifetime& buffer : buffers) {
    changes.emplace_back(buffer.first, static_cast<int64_t>(aligned(buffer.bytes)));
    changes.emplace_back(buffer.last + 1, -static_cast<int64_t>(aligned(buffer.bytes)));
  }
  // Buffers that end at a step are removed before those that begin there are added.
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, most = 0;
  for (const auto& [step, bytes] : changes) most = std::max(most, now += bytes);
  return static_cast<size_t>(most);
}

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& buffers) {
  MemoryPlan plan;
  plan.offsets.resize(buffers.size());
  plan.live = most_live(buffers);
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const Lifetime& buffer = buffers[i];
    size_t at = 0;
    for (size_t k = 0; k < placed.size(); ++k) {
      const Lifetime& other = buffers[placed[k]];
      const size_t from = plan.offsets[placed[k]];
      if (other.last < buffer.first || buffer.last < other.first) continue;
      if (from >= at + aligned(buffer.bytes)) break;
      at = std::max(at, from + aligned(other.bytes));
    }
    plan.offsets[i] = at;
    plan.bytes = std::max(plan.bytes, at + aligned(buffer.bytes));
    const auto position = std::upper_bound(placed.begin(), placed.end(), at,
                                           [&](size_t offset, size_t other) { return offset < plan.offsets[other]; });
    placed.insert(position, i);
  }
  return plan;
}

}  // namespace shard::program

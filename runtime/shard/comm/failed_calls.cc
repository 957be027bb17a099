#include "shard/comm/failed_calls.h"

#include <fmt/format.h>

namespace shard {

void FailedCalls::add(uint64_t call, int rank, int world_size, std::string text) {
  std::map<int, std::string>& ranks = calls_[call];
  ranks.emplace(rank, std::move(text));
  if (static_cast<int>(ranks.size()) == world_size) calls_.erase(call);
}

FailedCalls::PartialFailure FailedCalls::find_partial_failure(int rank, uint64_t done) const {
  for (const auto& [call, ranks] : calls_) {
    if (call > done || ranks.contains(rank)) continue;
    const auto& [other, text] = *ranks.begin();
    return {call, fmt::format("rank {} failed in a distributed call that succeeded on rank {}, so the tensors of the "
                              "ranks are inconsistent: {}",
                              other, rank, text)};
  }
  return {0, ""};
}

}  // namespace shard

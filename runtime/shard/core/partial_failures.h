// Calls that failed on some ranks of a world and not on others: what they wrote in place has no
// value.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

namespace shard {

/// What the ranks of a world (in this process) know of the first such call. Distributed calls are
/// counted alike on all ranks. Thread safe.
class PartialFailures {
 public:
  /// The first call to set() counts; callers take turns.
  void set(uint64_t call, std::string cause) {
    if (first_.load(std::memory_order_relaxed) != kNone) return;
    cause_ = std::move(cause);
    first_.store(call, std::memory_order_release);
  }
  /// True where what `call` wrote must not be read: it, or a call before it, failed on only some
  /// ranks.
  bool invalidates(uint64_t call) const { return call >= first_.load(std::memory_order_acquire); }
  /// Which call failed where, and why. Valid only after invalidates() has returned true.
  const std::string& cause() const { return cause_; }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  std::atomic<uint64_t> first_{kNone};
  std::string cause_;
};

}  // namespace shard

// An always-on record of the last events of a rank: collectives, and op calls if enabled. Exported
// for Perfetto.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shard/core/export.h"

namespace shard {

/// One event of a rank. The names point to strings that live as long as the library.
struct TraceEvent {
  enum class Kind : uint8_t { collective, call };
  Kind kind = Kind::call;
  std::string_view name;      // "all_gather", or the op
  std::string_view op;        // the op that caused it
  std::string_view argument;  // and its argument
  uint64_t sequence = 0;      // of the communicator
  int64_t bytes = 0;          // sent by this rank
  int64_t begin_ns = 0;
  int64_t end_ns = 0;  // 0: it has not ended
};

/// Nanoseconds of a steady clock.
SHARD_API int64_t now_ns();

/// A ring of the last events of one rank; written by that rank's thread only.
class SHARD_API TraceRing {
 public:
  static constexpr size_t kCapacity = 4096;

  /// Returns a ticket for finish().
  uint64_t record(const TraceEvent& event) {
    if (events_.size() < kCapacity) events_.push_back(event);
    else events_[(next_ - start_) % kCapacity] = event;
    return next_++;
  }
  /// Sets the end of an event that was recorded when it began. The ring may have overwritten it.
  void finish(uint64_t ticket, int64_t end_ns) {
    if (ticket >= start_ && next_ - ticket <= kCapacity) events_[(ticket - start_) % kCapacity].end_ns = end_ns;
  }
  /// Oldest first.
  std::vector<TraceEvent> events() const;
  /// The number of events that the ring has overwritten.
  uint64_t dropped() const { return next_ - start_ - events_.size(); }
  void clear() {
    events_.clear();
    start_ = next_;
  }

 private:
  std::vector<TraceEvent> events_;
  uint64_t start_ = 0;  // the ticket of the first event since the last clear
  uint64_t next_ = 0;
};

/// The events of all ranks in the Chrome trace format, which Perfetto and chrome://tracing open,
/// with a process per rank.
SHARD_API std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks);

}  // namespace shard

// An always-on record of what a rank did last: collectives, and op calls where asked for. Exported for Perfetto.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// One thing that a rank did. The names point to strings that live as long as the library.
struct TraceEvent {
  enum class Kind : uint8_t { collective, call };
  Kind kind = Kind::call;
  std::string_view name;      // "all_gather", or the op
  std::string_view op;        // the op that caused it
  std::string_view argument;  // and its argument
  uint64_t sequence = 0;      // of the communicator
  int64_t bytes = 0;          // sent by this rank
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// Nanoseconds of a steady clock.
int64_t now_ns();

/// A ring of the last events of one rank; written by that rank's thread only.
class TraceRing {
 public:
  static constexpr size_t kCapacity = 4096;

  void record(const TraceEvent& event) {
    if (events_.size() < kCapacity) events_.push_back(event);
    else events_[next_ % kCapacity] = event;
    ++next_;
  }
  /// Oldest first.
  std::vector<TraceEvent> events() const;
  /// Events that the ring has forgotten.
  uint64_t dropped() const { return next_ - events_.size(); }
  void clear() {
    events_.clear();
    next_ = 0;
  }

 private:
  std::vector<TraceEvent> events_;
  uint64_t next_ = 0;
};

/// The events of all ranks in the Chrome trace format, which Perfetto and chrome://tracing open; a process per rank.
std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks);

}  // namespace shard

#include "shard/core/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "shard/core/trace_export.h"

namespace shard {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::vector<TraceEvent> TraceRing::events() const {
  std::vector<TraceEvent> ordered;
  ordered.reserve(events_.size());
  const size_t first = events_.size() < kCapacity ? 0 : (next_ - start_) % kCapacity;
  for (size_t i = 0; i < events_.size(); ++i) ordered.push_back(events_[(first + i) % events_.size()]);
  return ordered;
}

namespace {

/// `start`: the time that becomes zero in the output.
std::string export_trace(std::span<const std::vector<TraceEvent>> ranks, std::span<const int> ids, int64_t start) {
  std::string json = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
  const char* separator = "";
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ids[i];
    json +=
        fmt::format("{}{{\"ph\": \"M\", \"pid\": {}, \"name\": \"process_name\", \"args\": {{\"name\": \"rank {}\"}}}}",
                    separator, rank, rank);
    separator = ",\n";
    for (const TraceEvent& event : ranks[i]) {
      const bool ended = event.end_ns != 0;
      const bool collective = event.kind == TraceEvent::Kind::collective;
      json += fmt::format(
          ",\n{{\"ph\": \"X\", \"pid\": {}, \"tid\": {}, \"cat\": \"{}\", \"name\": \"{}\", \"ts\": {:.3f}, \"dur\": "
          "{:.3f}, "
          "\"args\": {{\"op\": \"{}\", \"argument\": \"{}\", \"sequence\": {}, \"bytes\": {}{}}}}}",
          rank, collective ? 1 : 0, collective ? "collective" : "call", event.name,
          static_cast<double>(event.begin_ns - start) / 1e3,
          static_cast<double>(ended ? event.end_ns - event.begin_ns : 0) / 1e3, event.op, event.argument,
          event.sequence, event.bytes, ended ? "" : ", \"unfinished\": true");
    }
  }
  return json + "\n]}\n";
}

}  // namespace

std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks) {
  int64_t start = INT64_MAX;
  for (const auto& events : ranks) {
    for (const TraceEvent& event : events) start = std::min(start, event.begin_ns);
  }
  std::vector<int> ids(ranks.size());
  std::iota(ids.begin(), ids.end(), 0);
  return export_trace(ranks, ids, start);
}

std::string chrome_trace(std::span<const std::vector<TraceEvent>> ranks, std::span<const int> ids) {
  return export_trace(ranks, ids, 0);
}

}  // namespace shard

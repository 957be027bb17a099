// The ring of trace events and its export.
#include "shard/core/trace.h"

#include <catch2/catch.hpp>

#include <algorithm>
#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define SHARD_TEST_JSON  // a JSON parser is available: it comes with the code generator
#endif

namespace trace_test {

using namespace shard;

namespace {

TraceEvent event(uint64_t sequence) {
  TraceEvent e;
  e.kind = TraceEvent::Kind::collective;
  e.name = "all_gather";
  e.op = "matmul";
  e.argument = "y";
  e.sequence = sequence;
  e.begin_ns = static_cast<int64_t>(1000 + sequence);
  e.end_ns = e.begin_ns + 500;
  return e;
}

}  // namespace

TEST_CASE("the ring keeps the last events, oldest first, and counts the others") {
  TraceRing ring;
  CHECK(ring.events().empty());
  for (uint64_t i = 0; i < TraceRing::kCapacity; ++i) ring.record(event(i));
  CHECK(ring.dropped() == 0);
  CHECK(ring.events().front().sequence == 0);
  for (uint64_t i = 0; i < 10; ++i) ring.record(event(TraceRing::kCapacity + i));
  const auto events = ring.events();
  REQUIRE(events.size() == TraceRing::kCapacity);
  CHECK(ring.dropped() == 10);
  for (size_t i = 0; i < events.size(); ++i) REQUIRE(events[i].sequence == i + 10);
  ring.clear();
  CHECK(ring.events().empty());
  CHECK(ring.dropped() == 0);
}

#ifdef SHARD_TEST_JSON
TEST_CASE("a trace is valid JSON with a process per rank and times from the first event on") {
  const std::vector<std::vector<TraceEvent>> ranks = {{event(1), event(2)}, {}, {event(0)}};
  const auto json = nlohmann::json::parse(chrome_trace(ranks));
  int processes = 0;
  double earliest = 1e9;
  int slices = 0;
  for (const auto& entry : json["traceEvents"]) {
    processes += entry["ph"] == "M";
    if (entry["ph"] != "X") continue;
    ++slices;
    earliest = std::min(earliest, entry["ts"].get<double>());
    CHECK(entry["args"]["op"] == "matmul");
    CHECK(entry["dur"] == 0.5);
  }
  CHECK(processes == 3);
  CHECK(slices == 3);
  CHECK(earliest == 0.0);
}

TEST_CASE("a trace without events is valid JSON") { CHECK_NOTHROW(nlohmann::json::parse(chrome_trace({}))); }
#endif

TEST_CASE("time does not run backwards") {
  const int64_t a = now_ns();
  CHECK(now_ns() >= a);
}

}  // namespace trace_test

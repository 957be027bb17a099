// The tests of all transports, on threads.
#include "comm/conformance.h"

#include <catch2/catch.hpp>

#include "support/mesh_run.h"

namespace conformance_test {

using namespace shard;
using namespace shard::test;

TEST_CASE("threads: every collective, dtype and reduction gives every member what it should have") {
  for (const int n : {1, 2, 3, 4}) run_ranks(n, check_collectives);
}

TEST_CASE("20: threads: every fault is told to all, soon, and the world stays failed") {
  for (const Fault& fault : faults()) {
    INFO(fault.name);
    CHECK_NOTHROW(check_fault(fault, [](WorldOptions options) { return World::local(4, options); }));
  }
}

}  // namespace conformance_test

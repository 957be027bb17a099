// The tests of every transport: each collective with even, uneven and no data, on groups and sub-groups, and each
// failure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shard/dist/world.h"

namespace shard::test {

/// Runs them as one rank of a world of at most 4; throws at the first wrong result.
void check_collectives(Rank& rank);

/// A failure in a world of 4, and the error that every process must get.
struct Fault {
  std::string name;
  std::function<void(Rank&)> program;
  std::vector<std::string> told;  // one of these is in the text of the error
  std::chrono::milliseconds timeout{
      20000};          // of a collective; far above what the test allows, unless the timeout is tested
  bool debug = false;  // needs debug mode on a transport that does not always compare
};

const std::vector<Fault>& faults();

/// Makes a world with the options of the failure, runs it, and throws unless run() throws the expected error, soon,
/// and again on the next run.
void check_fault(const Fault& fault, const std::function<std::unique_ptr<World>(WorldOptions)>& make_world);

}  // namespace shard::test

// What every transport must do, as one table: each collective with even, uneven and no data, on groups and sub-groups, and each fault.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dist/world.h"

namespace shard::test {

/// Runs the table as one rank of a world of at most 4; throws at the first wrong result.
void check_collectives(Rank& rank);

/// A way to go wrong in a world of 4, and what every process must be told.
struct Fault {
  std::string name;
  std::function<void(Rank&)> program;
  std::vector<std::string> told;  // one of these is in the text of the error
  std::chrono::milliseconds timeout{
      20000};          // of a collective; far above what the test allows, unless the timeout is what is tested
  bool debug = false;  // needs debug mode on a transport that does not always compare
};

const std::vector<Fault>& faults();

/// Makes a world with the options of the fault, runs it, and throws unless run() throws what it should, soon, and again on the next run.
void check_fault(const Fault& fault, const std::function<std::unique_ptr<World>(WorldOptions)>& make_world);

}  // namespace shard::test

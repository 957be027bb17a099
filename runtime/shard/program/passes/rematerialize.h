// Rematerialisation: trades time for memory. Values that wait long for their readers are dropped
// and recomputed when they are read.
#pragma once

#include "shard/program/capture/trace.h"

namespace shard::program {

/// A program that does the same with at most `goal` live bytes (the maximum of live_bytes),
/// repeating as little as it can. If there is none, the program with the fewest bytes. Ops before
/// the peak of live bytes are repeated after it. Values are kept if their ops send, write what
/// others see, or would not find their arguments as they were.
Program rematerialize(const Program& program, int64_t goal);
/// The same for a function with its gradient: ops of the function are repeated in the backward
/// pass.
Trace rematerialize(Trace trace, int64_t goal);

}  // namespace shard::program

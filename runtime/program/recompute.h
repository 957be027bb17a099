// Less memory for more time: values that wait long for their readers are dropped, and made again when they are read.
#pragma once

#include "program/trace.h"

namespace shard::program {

/// A program that does the same in at most `goal` bytes (the largest of live_bytes), repeating as little as it can; where it finds none, the one
/// with the fewest bytes. Ops before the place where most bytes are live are repeated after it. Values whose ops send, write what others
/// see, or would not find their arguments as they were, are kept.
Program recompute(const Program& program, int64_t goal);
/// The same for a function with its gradient: ops of the function are repeated in the backward pass.
Trace recompute(Trace trace, int64_t goal);

}  // namespace shard::program

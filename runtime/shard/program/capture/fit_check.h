// Checks whether the arguments of a call fit a program that was loaded.
#pragma once

#include "shard/program/capture/trace.h"
#include "shard/program/exec/executor.h"

namespace shard::program {

/// Throws invalid_argument with all differences from the arguments that the loaded program takes.
void check_fit(const Trace& trace, const Arguments& arguments);

}  // namespace shard::program

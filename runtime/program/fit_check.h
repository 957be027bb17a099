// Checks whether the arguments of a call fit a program that was loaded.
#pragma once

#include "program/executor.h"
#include "program/trace.h"

namespace shard::program {

/// Throws invalid_argument with all differences from the arguments that the loaded program takes.
void check_fit(const Trace& trace, const Arguments& arguments);

}  // namespace shard::program

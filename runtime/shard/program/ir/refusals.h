// Finds ops that may throw because of the values that they read.
#pragma once

#include <vector>

#include "shard/program/ir/program.h"

namespace shard::program {

/// For each op, whether it may refuse values when it runs. Kernels refuse integers (an index, a
/// label, a divisor of 0) and probabilities of random ops. Integers that an op has accepted count
/// as accepted for its gradient, which checks them against the same table.
std::vector<bool> find_refusals(const Program& program);

/// For each op, whether it writes the buffer of an input or parameter, which outlives a run.
std::vector<bool> find_lasting_writes(const Program& program);

}  // namespace shard::program
